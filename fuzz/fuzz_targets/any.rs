//! Feeds the reader that `READER` names.

#![no_main]

libfuzzer_sys::fuzz_target!(
    // libFuzzer's own hook ends the process at any panic, but what a reader catches is no fault. One that it does
    // not catch ends the process after all, and the input, fed again by a test, tells the rest.
    init: std::panic::set_hook(Box::new(|_| {})),
    |bytes: &[u8]| kivu_fuzz::feed(bytes)
);
