# Entrances to the scripts. `make help` lists them.
.DEFAULT_GOAL := help
SHELL := bash
.PHONY: help demo test real compare wheel image fix lint bench sweep

help: ## List the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: ## Run engines, an index and queries; print what routing by cache saves
	@scripts/demo $(ARGS)

test: ## Run every test
	@scripts/test

real: ## Compare predictions with real vLLM engines on the CPU (installs 6 GB)
	@scripts/real $(ARGS)

compare: ## Compare routers before real vLLM engines
	@scripts/compare $(ARGS)

wheel: ## Build a Python wheel with the program kvasir, for any x86-64 Linux
	@scripts/wheel $(ARGS)

image: ## Build the container images and test them
	@scripts/image $(ARGS)

fix: ## Format the code and regenerate generated files
	@scripts/fix

lint: ## Check formatting and lints
	@scripts/lint

bench: ## Measure and write the benchmark report
	@benches/report $(ARGS)

sweep: ## Compare routing modes in virtual time
	@scripts/sweep $(ARGS)
