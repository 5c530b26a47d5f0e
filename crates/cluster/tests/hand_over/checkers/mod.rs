//! The guarantees of the hand-over, one file each. A checker panics at the instant at which a
//! guarantee breaks.

mod answers;
mod begins;
mod epochs;
mod orders;
mod recovery;

pub(crate) use answers::Answers;
pub(crate) use begins::Begins;
pub(crate) use epochs::Epochs;
pub(crate) use orders::Orders;
pub(crate) use recovery::Recovery;

/// All checkers.
#[derive(Debug, Default)]
pub(crate) struct Checkers {
    pub(crate) epochs: Epochs,
    pub(crate) orders: Orders,
    pub(crate) begins: Begins,
    pub(crate) answers: Answers,
    pub(crate) recovery: Recovery,
}
