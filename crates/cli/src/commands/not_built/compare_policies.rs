//! Stands for `ripieno compare` in a build without the feature `reproduce`.

use clap::Args;
use std::ffi::OsString;

/// Not in this build: build it with --features reproduce.
#[derive(Args, Debug)]
pub(crate) struct ComparePoliciesArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    words: Vec<OsString>,
}

pub(crate) fn run(args: &ComparePoliciesArgs) -> anyhow::Result<()> {
    anyhow::bail!("this build has no `compare` (called with {:?}); build it with --features reproduce", args.words)
}
