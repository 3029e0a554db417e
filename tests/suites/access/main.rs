//! Who gets in, and what each sees: every call as nobody, with the wrong role and of another tenant; tenants that learn nothing
//! of each other.

mod adapters;
mod agents;
mod calls;
mod endpoints;
mod fixture;
mod gateway;
mod play;
mod rates;
mod reload;
mod roles;
mod router;
mod side;
mod timing;
mod walls;
