/// Maximum sockets to workers' endpoints, even if the process may open more files: each link takes about 50 KiB.
pub const ENDPOINT_SOCKETS_MAX: usize = 8_192;
