use crate::partitions::RegisteredBy;

/// Who registered a worker. Older servers wrote 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub(in crate::snapshot) enum RegisteredByRecord {
    Unknown = 0,
    Configuration = 1,
    Request = 2,
}

impl From<RegisteredBy> for RegisteredByRecord {
    fn from(by: RegisteredBy) -> Self {
        match by {
            RegisteredBy::Unknown => Self::Unknown,
            RegisteredBy::Configuration => Self::Configuration,
            RegisteredBy::Request => Self::Request,
        }
    }
}

impl From<RegisteredByRecord> for RegisteredBy {
    fn from(record: RegisteredByRecord) -> Self {
        match record {
            RegisteredByRecord::Unknown => Self::Unknown,
            RegisteredByRecord::Configuration => Self::Configuration,
            RegisteredByRecord::Request => Self::Request,
        }
    }
}
