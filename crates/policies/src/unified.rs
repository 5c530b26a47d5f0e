//! "unified", the scheduler of a server, as a row of the catalogue. The rules are in
//! `ripieno_sched::serving`.

use crate::policy::{Chains, Form, Policy};
use ripieno_model::Walk;
use ripieno_sched::serving;

pub(crate) const POLICY: Policy = Policy {
    name: "unified",
    source: "Ripieno; no paper",
    summary: "one rule for models of all walks: of two offers, the one whose start costs the other less goes first",
    walks: &Walk::ALL,
    chains: Chains::Any,
    knobs: serving::KNOBS,
    needs: |_| serving::NEEDS,
    form: Form::OnePiece(serving::build),
};
