//! Encoder-decoder exports, in the layout of `optimum-cli export onnx`: rewritten as one encoder, which also makes
//! the keys and values that the decoder attends to, and one decoder, which serves every step.

mod graph;

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use self::graph::Part;
use super::{
    export,
    onnx::{
        self,
        proto::{GraphProto, ModelProto},
    },
};
use crate::{
    backend::onnx::{Runtime, Session},
    error::{Error, Result, quoted},
    repository::{
        bundle::{hex, sha256_of},
        manifest::Precision,
    },
};

/// The files of an export.
const ENCODER: &str = "encoder_model.onnx";
const MERGED: &str = "decoder_model_merged.onnx";
const FIRST: &str = "decoder_model.onnx";
const LATER: &str = "decoder_with_past_model.onnx";
/// Where they lie.
const FOLDERS: [&str; 2] = ["", "onnx"];

/// What the decoder reads of the encoder, and as what the encoder knows it.
const SEEN: [(&str, &str); 2] =
    [("encoder_hidden_states", "last_hidden_state"), ("encoder_attention_mask", "attention_mask")];
/// Put before the names of what moves into the encoder, which may have such names itself.
const MOVED: &str = "decoder/";

/// An encoder and a decoder, named as [`OnnxSeq2Seq`](crate::backend::onnx::OnnxSeq2Seq) wants them.
#[derive(Debug)]
pub struct Graphs {
    /// What runs once.
    pub encoder: ModelProto,
    /// What runs token by token.
    pub decoder: ModelProto,
}

/// An export, and what its own files say of it.
#[derive(Debug)]
pub(super) struct Export {
    graphs: Graphs,
    pub(super) architecture: String,
    pub(super) sha256: String,
    /// The most tokens that the decoder can be fed.
    pub(super) max_positions: usize,
}

impl Export {
    /// Reads the export in `folder`.
    pub(super) fn open(folder: &Path, architecture: String, max_positions: usize) -> Result<Self> {
        let inner = inner(folder);
        let mut hashes = String::new();
        for name in [ENCODER, MERGED, FIRST, LATER] {
            if inner.join(name).is_file() {
                hashes.push_str(&sha256_of(&inner.join(name))?);
            }
        }
        // Of several files, the hash of their hashes.
        let sha256 = hex(&Sha256::digest(&hashes));
        Ok(Self { graphs: read(folder)?, architecture, sha256, max_positions })
    }

    /// The encoder and the decoder, optimised, and quantised if wanted and not done yet.
    pub(super) fn graphs(
        &self,
        precision: Precision,
        runtime: Runtime,
        scratch: &Path,
    ) -> Result<[ModelProto; 2]> {
        if precision == Precision::Int8Blocks {
            return Err(Error::model(
                "expected `int8` or `fp32` for an ONNX export, but found `int8-blocks`, which is for weights",
            ));
        }
        let Graphs { encoder, decoder } = &self.graphs;
        let [encoder, decoder] = [(encoder, "encoder"), (decoder, "decoder")].map(|(graph, name)| {
            let mut graph = graph.clone();
            if precision == Precision::Int8 && !export::is_quantised(&graph) {
                export::quantise(&mut graph);
            }
            let raw = tempfile::Builder::new()
                .prefix(name)
                .tempdir_in(scratch)
                .map_err(Error::io("cannot create a folder for a graph"))?;
            let (plain, optimised) = (raw.path().join("plain.onnx"), raw.path().join("optimised.onnx"));
            onnx::write(graph, raw.path(), "plain.onnx")?;
            Session::optimise(runtime, &plain, &optimised)?;
            onnx::read(&optimised)
        });
        Ok([encoder?, decoder?])
    }
}

/// Whether `folder` holds such an export.
pub fn is_in(folder: &Path) -> bool {
    FOLDERS.iter().any(|inner| folder.join(inner).join(ENCODER).is_file())
}

/// Reads the export in `folder`.
pub fn read(folder: &Path) -> Result<Graphs> {
    let folder = inner(folder);
    let encoder = onnx::read(&folder.join(ENCODER))?;
    let (first, later, decoder) = if folder.join(MERGED).is_file() {
        let merged = onnx::read(&folder.join(MERGED))?;
        let (first, later) = branches(&merged)?;
        (first, later, merged)
    } else if folder.join(FIRST).is_file() && folder.join(LATER).is_file() {
        let later = onnx::read(&folder.join(LATER))?;
        (graph_of(onnx::read(&folder.join(FIRST))?), graph_of(later.clone()), later)
    } else {
        return Err(Error::model(format!(
            "expected a decoder beside `{ENCODER}`: `{MERGED}`, or `{FIRST}` and `{LATER}`, but found none of them"
        )));
    };
    Ok(Graphs {
        encoder: ModelProto { graph: Some(with_cross(graph_of(encoder.clone()), first)?), ..encoder },
        decoder: ModelProto { graph: Some(stepping(later)?), ..decoder },
    })
}

/// The folder of the graphs in the folder of an export.
fn inner(folder: &Path) -> PathBuf {
    let inner = FOLDERS.iter().map(|inner| folder.join(inner)).find(|inner| inner.join(ENCODER).is_file());
    inner.unwrap_or_else(|| folder.to_owned())
}

fn graph_of(model: ModelProto) -> GraphProto {
    model.graph.unwrap_or_default()
}

/// The decoder's first step and its later ones, from the two branches of a merged graph.
fn branches(merged: &ModelProto) -> Result<(GraphProto, GraphProto)> {
    let whole = merged.graph.clone().unwrap_or_default();
    let choice = whole.node.iter().find(|node| node.op_type == "If");
    let branch = |name: &str| {
        let attributes = choice.into_iter().flat_map(|node| &node.attribute);
        let graph = attributes.into_iter().find(|attribute| attribute.name == name)?.g.clone()?;
        Some(graph::within(&whole, graph))
    };
    branch("else_branch").zip(branch("then_branch")).ok_or_else(|| {
        Error::model(format!("expected `{MERGED}` to be a choice of two graphs, but found another graph"))
    })
}

/// The encoder with what the decoder's first step makes of its output alone.
fn with_cross(mut encoder: GraphProto, first: GraphProto) -> Result<GraphProto> {
    let outputs: Vec<String> = first.output.iter().map(|output| output.name.clone()).collect();
    let cross: Vec<(String, String)> =
        outputs.iter().filter_map(|name| Some((name.clone(), cross_name(name, "present.")?))).collect();
    if cross.is_empty() {
        return Err(Error::model(format!(
            "expected outputs `present.….encoder.key` of the decoder, but found {}; export the model with past",
            quoted(&outputs)
        )));
    }
    let part =
        Part::new(first).with_rows_of(SEEN[0].0).keep(|name| cross.iter().any(|(output, _)| output == name));
    let seen = |name: &str| SEEN.iter().find(|(seen, _)| *seen == name).map(|(_, known)| (*known).to_owned());
    if let Some(other) = part.inputs().iter().find(|input| seen(input).is_none()) {
        return Err(Error::model(format!(
            "expected the decoder to make its cross attention of {}, but found that it reads `{other}` too",
            quoted(&SEEN.map(|(seen, _)| seen))
        )));
    }
    let part = part.rename(|name| {
        let output = cross.iter().find(|(output, _)| output == name).map(|(_, new)| new.clone());
        seen(name).or(output).unwrap_or_else(|| format!("{MOVED}{name}"))
    });
    let moved = part.into_graph();
    encoder.node.extend(moved.node);
    encoder.initializer.extend(moved.initializer);
    encoder.output = moved.output;
    Ok(encoder)
}

/// The decoder's later steps, with the names that the runner knows.
fn stepping(later: GraphProto) -> Result<GraphProto> {
    let part = Part::new(later).keep(|name| name == "logits" || own_name(name, "present.").is_some());
    let part = part.rename(|name| {
        let past = own_name(name, "past_key_values.").map(|name| format!("past.{name}"));
        let present = own_name(name, "present.").map(|name| format!("present.{name}"));
        let cross = cross_name(name, "past_key_values.");
        match name {
            "encoder_attention_mask" => "attention_mask".to_owned(),
            // The mask of the decoder's own tokens would be another.
            "attention_mask" => "decoder_attention_mask".to_owned(),
            name => past.or(present).or(cross).unwrap_or_else(|| name.to_owned()),
        }
    });
    Ok(part.into_graph())
}

/// `N.key` or `N.value` of the decoder's own keys and values.
fn own_name(name: &str, prefix: &str) -> Option<String> {
    let (layer, kind) = name.strip_prefix(prefix)?.split_once(".decoder.")?;
    Some(format!("{layer}.{kind}"))
}

/// `cross.N.key` or `cross.N.value` of the keys and values that come from the encoder.
fn cross_name(name: &str, prefix: &str) -> Option<String> {
    let (layer, kind) = name.strip_prefix(prefix)?.split_once(".encoder.")?;
    Some(format!("cross.{layer}.{kind}"))
}
