//! Tells model files from others.

use std::{io::Read, path::Path};

use kivu::regular_file;

/// A model file's first bytes.
pub const MAGIC: [u8; 4] = 793_712_314_i32.to_le_bytes();
/// File name extensions.
const EXTENSIONS: [&str; 2] = ["bin", "ftz"];

/// Whether `path` is a model file.
pub fn is_model(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    let mut start = [0; MAGIC.len()];
    extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
        && regular_file::open(path)
            .and_then(|mut file| file.read_exact(&mut start))
            .is_ok()
        && start == MAGIC
}
