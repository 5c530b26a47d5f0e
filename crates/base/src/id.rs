//! Ids: small integers that index tables, with one type for each kind so that they cannot be
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
    /// A block (stage, node, cell) of one model, in the walk's order.
    BlockId(u16)
);
id!(
    /// A device that executes tasks.
    DeviceId(u16)
);
id!(
    /// One of a device's queues: its tasks run in order, concurrently with those of the device's
    /// other lanes.
    LaneId(u16)
);
id!(
    /// A slot in the table of live requests. The driver assigns slots and may reuse one once its
    /// request has ended.
    RequestSlot(u32)
);
id!(
    /// A task in flight: one batch on one block on one device. Reused once the task is done.
    TaskId(u32)
);
