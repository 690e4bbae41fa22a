//! Calls a reader with an input and checks how much memory it takes.

use std::sync::OnceLock;

/// Calls the reader named by the environment variable `READER`.
///
/// # Panics
/// If the reader panics or takes too much memory.
pub fn feed(bytes: &[u8]) {
    static READER: OnceLock<(String, kivu_readers::Reader)> = OnceLock::new();
    let (name, reader) = READER.get_or_init(|| {
        let name = std::env::var("READER").unwrap_or_default();
        let mut readers = kivu_readers::READERS.into_iter().chain(kivu_readers::compiler::READERS);
        let reader = readers.find(|(known, _)| *known == name).expect("`READER` names a folder of fuzz/corpus");
        (name, reader.1)
    });
    let taken = allocation_counter::measure(|| reader(bytes)).bytes_max;
    let allowed = kivu_readers::MAX_FACTOR * bytes.len() as u64 + kivu_readers::MAX_EXTRA_BYTES;
    assert!(taken <= allowed, "`{name}` takes {taken} bytes for {}", bytes.len());
}
