//! The fuzz target; the environment variable `READER` selects the reader.

#![no_main]

libfuzzer_sys::fuzz_target!(
    // The hook of libFuzzer ends the process at any panic, also at those that a reader catches. Others end it without
    // the hook; a test with the same input shows their message.
    init: std::panic::set_hook(Box::new(|_| {})),
    |bytes: &[u8]| kivu_fuzz::feed(bytes)
);
