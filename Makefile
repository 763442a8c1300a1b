# Every target sets up what it needs: `make run` and `make test` work on a bare checkout with Python >= 3.11.
.PHONY: run smoke up down test check unit integration install clean

run: install ## documents to a registered model, on this machine (profile laptop)
	.venv/bin/afm run --profile laptop

smoke: install ## the same road with a tiny random model: checks an installation in minutes
	.venv/bin/afm run --profile smoke

up: install ## Prefect, MLflow, S3 and Ray servers on this machine, see docs/services.md
	.venv/bin/afm up

down: install ## stop them
	.venv/bin/afm down

test: install check unit integration ## everything CI runs

check: install
	.venv/bin/python -m ruff check .
	.venv/bin/python -m ruff format --check .
	.venv/bin/python -m mypy
	PYTHONPATH=. .venv/bin/python -c "from importlinter.cli import lint_imports_command; lint_imports_command()"

unit: install
	.venv/bin/python -m pytest -q -n 2 -m "not integration"

integration: install
	.venv/bin/python -m pytest -q -n 2 --dist loadfile -m integration

install:
	@bash deployments/environment.sh

clean:
	rm -rf .venv .afm .mypy_cache .ruff_cache .hypothesis
