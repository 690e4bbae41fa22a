//! What every target does: one reader, any bytes, and a look at the memory it took.

/// Gives `bytes` to the reader called `name`; panics where it takes too much memory, or panics itself.
pub fn feed(name: &str, bytes: &[u8]) {
    let reader = kivu::fuzzing::reader(name).expect("every target has a reader");
    let taken = allocation_counter::measure(|| reader(bytes)).bytes_max;
    let allowed = kivu::fuzzing::MOST_TIMES * bytes.len() as u64 + kivu::fuzzing::MOST_BYTES;
    assert!(taken <= allowed, "`{name}` takes {taken} bytes for {}", bytes.len());
}
