//! Symbolic links in a model's folder.

use std::path::Path;

use crate::{files::io::list, plan::path_id::canonical};
use kivu::{Error, Result};

/// Refuses symbolic links in a model's folder that lead out of it: what they name may be any file on this machine. In
/// the hub's cache, a commit's files are links to the repository's `blobs`.
pub fn check_links(folder: &Path) -> Result<()> {
    let inside = canonical(folder)?;
    let snapshots = inside
        .parent()
        .filter(|parent| parent.ends_with("snapshots"));
    let blobs = snapshots
        .and_then(Path::parent)
        .map(|own| own.join("blobs"));
    let mut pending = vec![inside.clone()];
    while let Some(folder) = pending.pop() {
        for (path, metadata) in list(&folder)? {
            let name = path.file_name().unwrap_or_default();
            // Nothing is read from hidden folders, which may be large, such as `.git`.
            if metadata.is_dir() && !name.as_encoded_bytes().starts_with(b".") {
                pending.push(path);
                continue;
            }
            // Nothing is behind a link to nowhere.
            let is_link = metadata.is_symlink();
            let Some(target) = is_link.then(|| path.canonicalize().ok()).flatten() else {
                continue;
            };
            let is_blob = blobs
                .as_ref()
                .is_some_and(|blobs| target.parent() == Some(blobs));
            if !target.starts_with(&inside) && !is_blob {
                return Err(Error::model(format!(
                    "`{}` is a symbolic link out of the model's folder, to `{}`",
                    path.display(),
                    target.display()
                ))
                .with_hint("copy the file into the folder"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn links_out_of_a_folder_are_refused_but_for_the_hubs_blobs() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join("models--a--b").join(path);
        let link = |target: &str, path: &str| std::os::unix::fs::symlink(target, at(path)).unwrap();
        let commit = at("snapshots/c");
        fs::create_dir_all(commit.join("1_Pooling")).unwrap();
        fs::create_dir_all(at("blobs")).unwrap();
        for file in ["blobs/0", "refs", "snapshots/c/own", "snapshots/other"] {
            fs::write(at(file), "x").unwrap();
        }
        link("../../blobs/0", "snapshots/c/config.json");
        link("../../../blobs/0", "snapshots/c/1_Pooling/config.json");
        link("own", "snapshots/c/inside");
        link("/nowhere", "snapshots/c/dangling");
        check_links(&commit).unwrap();
        for (target, place) in [
            ("../other", "snapshots/c/vocab.txt"),
            ("../../../refs", "snapshots/c/1_Pooling/model.safetensors"),
            ("/etc/passwd", "snapshots/c/tokenizer.json"),
            ("/etc", "snapshots/c/2_Dense"),
            ("..", "snapshots/c/onnx"),
        ] {
            link(target, place);
            let error = check_links(&commit).unwrap_err().to_string();
            assert!(
                error.contains("is a symbolic link out of the model's folder"),
                "{target}: {error}"
            );
            fs::remove_file(at(place)).unwrap();
        }
        // Elsewhere, no folder is special.
        let copy = root.path().join("copy");
        fs::rename(at("snapshots/c"), &copy).unwrap();
        fs::create_dir(root.path().join("blobs")).unwrap();
        fs::write(root.path().join("blobs/0"), "x").unwrap();
        fs::remove_file(copy.join("config.json")).unwrap();
        std::os::unix::fs::symlink("../blobs/0", copy.join("config.json")).unwrap();
        assert!(check_links(&copy).is_err());
    }
}
