//! What the packages for Python and Node share: models by name with options in JSON, a function per task from
//! parameters in JSON to results, and the classes of errors.
//!
//! The packages convert texts and results, and wait for the functions' futures.

mod errors;
mod load;
mod run;
mod tasks;
mod texts;

pub use self::{
    errors::class,
    load::Source,
    run::{on_thread, runtime},
    tasks::{
        Token, Weights, classify, describe, encode, entities, generate, multi_vectors, rank, sparse, to_json,
        tokenize, translate, zero_shot,
    },
    texts::{check, half_a_pair, no_pair},
};
