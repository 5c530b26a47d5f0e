//! Ids: small integers that index tables. Each kind has its own type, so that they cannot be
//! confused.

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub struct $name(pub $int);

        impl $name {
            /// Returns the index of this id in a table.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

id!(
    /// A model that the scheduler knows.
    ModelId(u16)
);
id!(
    /// A block (stage, node or cell) of one model, in the order of the walk.
    BlockId(u16)
);
id!(
    /// A device that executes tasks.
    DeviceId(u16)
);
id!(
    /// One of a device's queues. Its tasks run in order. Lanes of a device run concurrently.
    LaneId(u16)
);
id!(
    /// A slot in the table of live requests. The driver assigns slots, and may reuse a slot once
    /// its request has ended.
    RequestSlot(u32)
);
id!(
    /// A task in flight: one batch on one block on one device. The id is reused once the task is
    /// done.
    TaskId(u32)
);
