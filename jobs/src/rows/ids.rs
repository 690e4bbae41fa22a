//! Ids that no two rows of a file may have.

use std::collections::HashSet;

/// The ids so far, as hashes, of which each takes about 40 bytes of memory.
#[derive(Default)]
pub struct Ids(HashSet<u128>);

impl Ids {
    /// Adds an id; `false` if it was added before.
    pub fn add(&mut self, id: &str) -> bool {
        let mut hash = [0; 16];
        hash.copy_from_slice(&blake3::hash(id.as_bytes()).as_bytes()[..16]);
        self.0.insert(u128::from_le_bytes(hash))
    }
}
