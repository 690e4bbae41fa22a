//! File layout of an export.

use std::path::Path;

use super::{generator, text_encoder::GRAPHS};

/// Whether `folder` has an export.
pub fn is_in(folder: &Path) -> bool {
    files(|path| folder.join(path).is_file(), []).is_some()
}

/// Whether a path names a graph.
pub fn is_graph(path: &str) -> bool {
    files(|graph| graph == path, []).is_some()
        || path.rsplit('/').next() == Some(generator::ENCODER)
}

/// An export's graphs and weight files among `paths`; `None` without an export.
pub fn files<'a>(
    has: impl Fn(&str) -> bool,
    paths: impl IntoIterator<Item = &'a str> + Clone,
) -> Option<Vec<String>> {
    let seq2seq = generator::FOLDERS.iter().find_map(|folder| {
        let path = |name: &str| {
            if folder.is_empty() {
                name.to_owned()
            } else {
                format!("{folder}/{name}")
            }
        };
        let decoders = [
            &[generator::MERGED][..],
            &[generator::FIRST, generator::LATER],
        ];
        let decoders =
            decoders.map(|names| names.iter().map(|name| path(name)).collect::<Vec<_>>());
        let decoders = decoders
            .into_iter()
            .find(|paths| paths.iter().all(|path| has(path)))?;
        let encoder = Some(path(generator::ENCODER)).filter(|encoder| has(encoder))?;
        Some([vec![encoder], decoders].concat())
    });
    let single = || {
        GRAPHS
            .iter()
            .find(|graph| has(graph))
            .map(|graph| vec![(*graph).to_owned()])
    };
    let graphs = seq2seq.or_else(single)?;
    // `model.onnx_data`, `model.onnx_data_1`, `model.onnx.data`
    let is_data = |path: &&str| {
        graphs.iter().any(|graph| {
            path.strip_prefix(graph.as_str())
                .is_some_and(|end| end.starts_with(['_', '.']))
        })
    };
    let data: Vec<String> = paths
        .into_iter()
        .filter(is_data)
        .map(str::to_owned)
        .collect();
    Some([graphs, data].concat())
}
