//! The block manager of an agent, as processes over gRPC and a socket file: what engines save they get back, and the index
//! knows which tier has it, whatever is killed.

#[path = "../agent/aged.rs"]
mod aged;
mod churn;
mod converted;
mod engine;
#[path = "../upgrade/folder.rs"]
mod folder;
#[path = "../../../kvbm-agent/memory/tests/nixl/found.rs"]
mod found;
mod joined;
mod kept;
mod lost;
mod older;
mod peers;
mod place;
mod planned;
mod pools;
mod rank;
mod refusals;
mod restart;
mod saved;
mod slow;
mod stop;
mod storage;
mod storage_streams;
