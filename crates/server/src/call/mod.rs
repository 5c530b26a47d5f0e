//! One inference call: from decoded inputs to outputs, whatever the protocol.

pub(crate) mod check;
pub(crate) mod decoded;
pub(crate) mod delivery;
pub(crate) mod ensemble;
pub(crate) mod infer;
pub(crate) mod overrides;
pub(crate) mod regions;
pub(crate) mod sequences;
pub(crate) mod stream;
pub(crate) mod texts;
