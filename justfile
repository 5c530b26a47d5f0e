# Short names for the commands of every day; each is one line that also works without just.

# List the recipes.
default:
    @just --list

# Half a minute: trained models answer, policies side by side.
demo:
    cargo run --release -- demo

# Serve the demo models on ports 8000, 8001 and 8002.
serve *ARGS:
    cargo run --release -- serve models/repository {{ARGS}}

# Open-loop load on a server.
bench *ARGS:
    cargo run --release -- bench {{ARGS}}

# Every test, the stock Python clients included.
test *ARGS:
    cargo xtask test {{ARGS}}

# The rules of the house.
tidy:
    cargo xtask tidy

# Format everything.
fmt:
    cargo fmt --all

# Warnings are errors.
lint:
    cargo clippy --workspace --all-targets -- -D warnings

# Licences, advisories and bans; needs cargo-deny.
deny:
    cargo deny check

# Spelling; needs typos-cli.
typos:
    typos

# The API documentation of all crates.
doc:
    cargo doc --workspace --no-deps --open

# What a change must pass.
ci:
    .ci/run
