/// Most sockets of workers' endpoints, however many files the server may open: each link takes about 50 KiB.
pub const ENDPOINT_SOCKETS_MAX: usize = 8_192;
