"""The library: rooms on floors, lowest first, an import never points up (see docs/concepts.md).

data, config | coa, tokens, store, tracking | engines | tools | rewards | rollout, moe | teacher | taskcraft,
curation | evaluation | training | execution. Prefect is never imported here: scheduling lives in tasks/ and flows/.
"""
