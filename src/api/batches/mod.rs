//! Batches of requests in uploaded files: OpenAI's `/v1/batches`.
//!
//! A batch is a job whose rows are requests. Handlers create its objects; a [`BatchRunner`] in the server's process, or
//! a function, runs it. From then on, only the runner writes the batch object, and a request to cancel it is an
//! object of its own.

mod entry;
pub(super) mod handlers;
mod object;
mod object_jobs;
mod output;
mod responder;
mod run;
mod runner;
#[cfg(test)]
mod tests;
mod validation;

pub use self::{object_jobs::BatchObjects, runner::BatchRunner};
