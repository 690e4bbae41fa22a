//! Requests and responses of the protocol, over HTTP and gRPC.

pub mod codec;
#[doc(hidden)]
pub mod grpc;
#[doc(hidden)]
pub mod http;
pub mod interface;
#[doc(hidden)]
pub mod messages;
#[doc(hidden)]
pub mod protocol;
pub mod server_url;
