//! The fuzz target; the environment variable `READER` selects the reader.

#![no_main]

libfuzzer_sys::fuzz_target!(
    // libFuzzer's hook ends the process at any panic, even one that a reader catches. Other panics end it without the
    // hook; a test with the same input shows their message.
    init: std::panic::set_hook(Box::new(|_| {})),
    |bytes: &[u8]| kivu_readers::feed(bytes)
);
