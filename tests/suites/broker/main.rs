//! Kvasir over a real nats-server: what is said over core NATS and JetStream, whatever happens to the
//! broker; and questions to agents.

mod server;
