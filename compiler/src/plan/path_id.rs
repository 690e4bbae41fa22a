//! A local model's id: a hash that changes with its files.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::recipe::Recipe;
use crate::files::io as files;
use kivu::{Error, Result, hexadecimal::hex};

/// Hashes the names and [versions](version) of a folder's files; for a recipe, including all folders it names.
pub fn path_id(path: &Path) -> Result<String> {
    let path = canonical(path)?;
    let mut hash = Sha256::new();
    hash.update(path.as_os_str().as_encoded_bytes());
    let mut pending = if path.is_dir() {
        vec![path]
    } else {
        let source = Recipe::open(&path)?.source;
        hash.update(files::read(&path)?);
        let local = Some(source.folder)
            .filter(|_| source.package.is_none())
            .into_iter();
        let folder = path.parent().unwrap_or(Path::new("."));
        local
            .chain(source.adapter)
            .map(|inner| folder.join(inner))
            .collect()
    };
    let mut entered = BTreeSet::new();
    while let Some(folder) = pending.pop() {
        for (path, _) in files::list(&folder)? {
            // Hidden folders may be large, such as `.git`.
            if path
                .file_name()
                .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
            {
                continue;
            }
            // Links are followed; a dangling link is part of the folder, too.
            let found = fs::metadata(&path).or_else(|_| fs::symlink_metadata(&path));
            let found = found.map_err(Error::cannot("read", path.display()))?;
            hash.update(path.as_os_str().as_encoded_bytes());
            if !found.is_dir() {
                hash.update(format!("\0{:?}\0", version(&found)));
            } else if entered.insert((found.dev(), found.ino())) {
                pending.push(path);
            }
        }
    }
    Ok(hex(&hash.finalize()))
}

/// Identifies a file's contents. Programs can set the last write time, but not the last change time.
fn version(found: &fs::Metadata) -> [i64; 7] {
    let (size, inode) = (found.len().cast_signed(), found.ino().cast_signed());
    let device = found.dev().cast_signed();
    [
        size,
        device,
        inode,
        found.mtime(),
        found.mtime_nsec(),
        found.ctime(),
        found.ctime_nsec(),
    ]
}

pub fn canonical(path: &Path) -> Result<PathBuf> {
    fs::canonicalize(path).map_err(Error::cannot("find", path.display()))
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn a_change_with_the_same_size_and_time_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let (model, elsewhere) = (folder.path().join("model"), folder.path().join("elsewhere"));
        let adapter = model.join("separation");
        for folder in [&model, &elsewhere, &adapter] {
            fs::create_dir(folder).unwrap();
        }
        symlink(&elsewhere, model.join("1_Pooling")).unwrap();
        // A link to an outer folder must not be followed forever.
        symlink(&model, model.join("loop")).unwrap();
        for path in [
            model.join("weights"),
            elsewhere.join("config.json"),
            adapter.join("adapter_model.safetensors"),
        ] {
            fs::write(&path, "one").unwrap();
            let before = path_id(&model).unwrap();
            assert_eq!(path_id(&model).unwrap(), before);
            let time = fs::metadata(&path).unwrap().modified().unwrap();
            // Repeats until the file system's clock has advanced.
            while path_id(&model).unwrap() == before {
                fs::write(&path, "two").unwrap();
                File::options()
                    .write(true)
                    .open(&path)
                    .unwrap()
                    .set_modified(time)
                    .unwrap();
            }
        }
        let before = path_id(&model).unwrap();
        let copy = folder.path().join("copy");
        fs::copy(model.join("weights"), &copy).unwrap();
        fs::rename(copy, model.join("weights")).unwrap();
        assert_ne!(path_id(&model).unwrap(), before, "another file");
    }
}
