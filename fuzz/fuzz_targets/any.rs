//! Feeds the reader that `READER` names.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kivu_fuzz::feed(bytes));
