//! What is done with every input: a reader is fed with it, and the memory looked at that it took.

use std::sync::OnceLock;

/// Gives `bytes` to the reader that the environment names as `READER`; panics where that takes too much memory, or
/// panics itself.
pub fn feed(bytes: &[u8]) {
    static READER: OnceLock<(String, kivu::fuzzing::Reader)> = OnceLock::new();
    let (name, reader) = READER.get_or_init(|| {
        let name = std::env::var("READER").unwrap_or_default();
        let reader = kivu::fuzzing::reader(&name).expect("`READER` names one of fuzz/readers");
        (name, reader)
    });
    let taken = allocation_counter::measure(|| reader(bytes)).bytes_max;
    let allowed = kivu::fuzzing::MOST_TIMES * bytes.len() as u64 + kivu::fuzzing::MOST_BYTES;
    assert!(taken <= allowed, "`{name}` takes {taken} bytes for {}", bytes.len());
}
