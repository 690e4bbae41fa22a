//! Reads the layers of a known encoder back from its export, so that quantized weights run in the native engine. The
//! export stays the reference: its results decide whether the layers are the same.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use super::quantize::floats;
use crate::{
    encoder::{Head, source_of_layers},
    files::{
        config::ConfigFile,
        io as files,
        weights::{Weight, Weights},
    },
    onnx,
    plan::{
        Build,
        opened_model::{Graphs, MODEL, OpenedModel},
    },
    quality::{
        Texts,
        served::{self, EncoderParts},
    },
    quantize::transpose,
};
use kivu::{
    Error, Result,
    backend::Engine,
    model::EncoderPipeline,
    onnx_proto::{GraphProto, ModelProto},
    pipeline::embedding::{EmbeddingSettings, pooling::Pooling},
    repository::{TaskSettings, manifest::Precision},
    tokenizer::Tokenizer,
};

/// The output with a vector per text, which the graph has pooled.
pub const POOLED: &str = "sentence_embedding";
/// Number of shortest and of longest sample texts on which layers and export are compared.
const TEXTS: usize = 12;
/// Largest difference of a value, relative to the largest value: the rounding of other operators.
const TOLERANCE: f32 = 1e-3;

/// An export with everything that was read from its folder.
pub struct Export<'a> {
    pub model: &'a ModelProto,
    pub config: &'a ConfigFile,
    pub head: Option<Head>,
    pub settings: &'a TaskSettings,
    pub tokenizer: &'a [u8],
}

/// Reads the layers of an export in a native family's form.
///
/// # Errors
/// The family or its form is not the native engine's, weights are missing or unknown, or the results differ.
pub fn read(build: Build<'_>, export: Export<'_>) -> Result<OpenedModel<'static>> {
    let plan = build.plan;
    let Export {
        model,
        config,
        head,
        settings,
        tokenizer,
    } = export;
    let output = match settings {
        TaskSettings::Embedding(EmbeddingSettings {
            dense: Some(dense), ..
        }) if dense.pooling != Pooling::Graph && dense.output != POOLED => {
            Some(dense.output.clone())
        }
        TaskSettings::Embedding(_) => {
            return Err(Error::model("the export pools token vectors itself"));
        }
        _ => None,
    };
    let graph = model.graph.as_ref();
    let weights = weights(graph.unwrap_or(&GraphProto::default()));
    let source = source_of_layers(plan, config, weights, head, settings, tokenizer)?;
    if source.engine != Engine::Native {
        return Err(Error::model("the native engine does not run the layers"));
    }
    let graphs = source.graphs;
    let source = OpenedModel {
        graphs: Box::new(move |precision, forms| {
            let mut graphs = graphs(precision, forms)?;
            if let Some(output) = &output {
                name_output(&mut graphs, output);
            }
            Ok(graphs)
        }),
        ..source
    };
    compare(build, &source, model)?;
    Ok(source)
}

/// The weights of linear layers, tables and normalizations, by the names in the original model.
///
/// An export has the matrix of a linear layer transposed and without its name, but the layer's bias with its own. Layers
/// without a bias have their names in those of their nodes.
fn weights(graph: &GraphProto) -> Weights {
    let mut tensors: BTreeMap<String, Weight> = BTreeMap::new();
    let constants: BTreeMap<&str, _> = graph
        .initializer
        .iter()
        .map(|tensor| (tensor.name.as_str(), tensor))
        .collect();
    for (name, tensor) in &constants {
        let is_named = name.contains('.') && !name.contains([':', '/']);
        if is_named && let Some((shape, values)) = floats(tensor) {
            tensors.insert((*name).to_owned(), Weight { shape, values });
        }
    }
    let biases: BTreeMap<&str, &str> = graph
        .node
        .iter()
        .filter(|node| node.op_type == "Add" && node.input.len() == 2)
        .flat_map(|node| {
            let (left, right) = (node.input[0].as_str(), node.input[1].as_str());
            [(left, right), (right, left)]
        })
        .filter(|(_, bias)| constants.contains_key(bias))
        .collect();
    for node in graph.node.iter().filter(|node| node.op_type == "MatMul") {
        let (Some(product), Some(matrix)) = (node.output.first(), node.input.get(1)) else {
            continue;
        };
        let Some((shape, values)) = constants.get(matrix.as_str()).and_then(|it| floats(it)) else {
            continue;
        };
        let bias = biases.get(product.as_str());
        let layer = match bias.and_then(|bias| bias.strip_suffix(".bias")) {
            Some(layer) => layer.to_owned(),
            None => node
                .name
                .trim_matches('/')
                .trim_end_matches("/MatMul")
                .replace('/', "."),
        };
        if let [inputs, outputs] = shape[..] {
            let weight = Weight {
                shape: vec![outputs, inputs],
                values: transpose(&values, outputs),
            };
            tensors.insert(format!("{layer}.weight"), weight);
        }
    }
    Weights::of_tensors(without_wrappers(tensors), String::new())
}

/// Removes the names of the modules around the model, such as `0.auto_model.` of sentence-transformers.
fn without_wrappers(tensors: BTreeMap<String, Weight>) -> BTreeMap<String, Weight> {
    const WRAPPERS: [&str; 3] = ["0.auto_model.", "0.model.", "0."];
    let bare = |name: String| {
        let found = WRAPPERS
            .iter()
            .find_map(|wrapper| name.strip_prefix(wrapper));
        found.map(str::to_owned).unwrap_or(name)
    };
    tensors
        .into_iter()
        .map(|(name, weight)| (bare(name), weight))
        .collect()
}

/// Gives the one output of the encoder's graph the export's name.
fn name_output(graphs: &mut Graphs, name: &str) {
    for graph in graphs
        .iter_mut()
        .filter_map(|(_, model)| model.graph.as_mut())
    {
        let Some(output) = graph.output.first_mut() else {
            continue;
        };
        let own = std::mem::replace(&mut output.name, name.to_owned());
        let nodes = graph.node.iter_mut();
        nodes
            .flat_map(|node| &mut node.output)
            .filter(|output| **output == own)
            .for_each(|output| name.clone_into(output));
    }
}

/// Refuses layers with other results than the export's.
fn compare(build: Build<'_>, source: &OpenedModel<'_>, export: &ModelProto) -> Result<()> {
    let tokenizer = Arc::new(Tokenizer::from_json(&source.tokenizer)?);
    let parts = EncoderParts {
        runtime: build.runtime,
        tokenizer: &tokenizer,
        settings: &source.settings,
        labels: None,
    };
    let mut texts = Texts::default();
    texts.texts.sort_by_key(String::len);
    texts.texts.drain(TEXTS..texts.texts.len() - TEXTS);
    let answers = |graphs: Graphs, name: &str, engine: Engine| {
        let folder = files::create_folder(&build.scratch.join(name))?;
        onnx::write_all(graphs, &folder)?;
        let answers = run(parts, &folder, engine, &texts);
        std::fs::remove_dir_all(&folder).map_err(Error::io("cannot remove a folder"))?;
        answers
    };
    let export = vec![(MODEL, export.clone())];
    let expected = answers(export, "export", Engine::Onnx)?;
    let layers = (source.graphs)(Precision::Fp32, None)?;
    let found = answers(layers, "layers", source.fp32_engine)?;
    let largest = expected
        .iter()
        .flatten()
        .fold(0.0, |most: f32, value| most.max(value.abs()));
    let is_same = |expected: &f32, found: &f32| (expected - found).abs() <= TOLERANCE * largest;
    let are_same = expected.len() == found.len()
        && expected.iter().zip(&found).all(|(expected, found)| {
            expected.len() == found.len()
                && expected
                    .iter()
                    .zip(found)
                    .all(|(left, right)| is_same(left, right))
        });
    match are_same {
        true => Ok(()),
        false => Err(Error::model(
            "the layers have other results than the export",
        )),
    }
}

fn run(
    parts: EncoderParts<'_>,
    folder: &Path,
    engine: Engine,
    texts: &Texts,
) -> Result<Vec<Vec<f32>>> {
    let model = served::open(parts, folder, engine)?;
    let mut values = served::measure(&model, texts, &())?.values();
    // A graph may lack the types of tokens, which tell a pair's texts apart.
    if let EncoderPipeline::Classification(pipeline) = &model {
        values.extend(served::pair_scores(pipeline, texts)?);
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_those_of_the_exported_model() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
        for name in [
            "tiny-bert",
            "tiny-bert-ner",
            "tiny-bert-rank",
            "tiny-roberta-nli",
        ] {
            let export = onnx::read(&fixtures.join("exports").join(name).join("model.onnx"));
            let found = weights(export.unwrap().graph.as_ref().unwrap());
            let expected = Weights::open(&fixtures.join("models").join(name)).unwrap();
            assert!(found.tensors.len() > 30, "{name}");
            for (weight, found) in &found.tensors {
                assert_eq!(
                    Some(found),
                    expected.tensors.get(weight),
                    "{name}: {weight}"
                );
            }
            // An embedder's export has no pooler.
            let mut missing = expected.names().filter(|weight| !found.has(weight));
            assert!(missing.all(|weight| weight.contains("pooler")), "{name}");
        }
    }

    #[test]
    fn names_of_modules_around_the_model_are_removed() {
        let path = "../tests/fixtures/exports/tiny-bert-st/model.onnx";
        let export = onnx::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
        let found = weights(export.graph.as_ref().unwrap());
        let weight = "encoder.layer.1.attention.self.query.weight";
        assert!(found.has(weight) && found.has("embeddings.LayerNorm.bias"));
        assert!(found.names().all(|name| !name.starts_with("0.")));
    }
}
