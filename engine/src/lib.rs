//! The native engine of Kivu: runs encoders in int8 on packed texts.
//!
//! A [`Program`](program::Program) is a model as a list of operations. A [`Run`](run::Run) executes it on packed texts, in
//! tasks that any number of threads can share. The operations are written once, in terms of the [`kernel`], which has an
//! implementation per instruction set; all of them return the same bits.
//!
//! This is a crate of its own so that it is optimized in every profile.

pub mod array;
mod attention;
pub mod kernel;
mod linear;
mod math;
pub mod program;
pub mod rotary;
pub mod run;
pub mod similarity;
