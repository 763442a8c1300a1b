"""Mixture-of-experts models: which experts a domain uses, and training only those (DBES, ESFT)."""
