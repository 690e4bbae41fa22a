//! Kivu's native engine: runs encoders on packed texts.
//!
//! A [`Program`](program::Program) is a model as an operation list. A [`Run`](run::Run) executes it on packed texts, as
//! tasks that any number of threads can share. The operations are written once, in terms of the [`kernel`], which has
//! an implementation per instruction set; all of them return the same bits.
//!
//! It is a separate crate so that it is optimized in every profile.

mod adapters;
pub mod array;
mod attention;
mod distances;
mod experts;
pub mod floats;
mod heads;
pub mod kernel;
mod linear;
mod math;
mod numbers;
pub mod panels;
pub mod program;
pub mod quantize;
pub mod rotary;
pub mod run;
pub mod similarity;
