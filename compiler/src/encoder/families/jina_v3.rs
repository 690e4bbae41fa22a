//! jina-embeddings-v3: XLM-RoBERTa with rotary positions and adapters for tasks, and models with the same code, such as
//! jina-reranker-v2. Its files have the form of the authors' code, or of `transformers` 5.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    path::{Path, PathBuf},
};

use super::{
    fields::{expect, positions},
    rope::{self, Rope},
};
use crate::{
    encoder::config::{
        Biases, EncoderConfig, EncoderLimits, FeedForward, Gate, HeadInput, Heads, Names,
        Positions, Span, Tasks,
    },
    files::{
        config::ConfigFile,
        io as files,
        lora::{self, Adapter, Matrices},
        weights::{Weight, Weights},
    },
    onnx::layers::{Activation, AttentionWindow, Scaling, adapter_names, type_adapter_name},
    quantize::transpose,
};
use kivu::{Error, Result};
use serde_json::Value;

/// The `model_type` in `transformers`.
pub const JINA_V3: &str = "jina_embeddings_v3";

/// Sets of weight names: the authors', and those of `transformers`.
const NAMES: &str = "jina-v3";
const TRANSFORMERS: &str = "jina-v3-transformers";

/// Rotary bases, if the config does not name them.
const BASE: f64 = 10_000.0;
const BASE_IN_TRANSFORMERS: f64 = 20_000.0;

/// Far above published models'.
const MAX_TASKS: usize = 100;

/// Suffixes that the authors' code adds to the names of weights with adapters, and of adapters.
const ORIGINAL: &str = ".parametrizations.weight.original";
const ADAPTERS: &str = ".parametrizations.weight.0";

/// Whether a config with type `xlm-roberta` belongs to the authors' code. Other code is refused.
pub fn is_described_by(config: &ConfigFile) -> bool {
    let field = |name: &str| config.value(name);
    field("auto_map").is_some_and(Value::is_object)
        || field("position_embedding_type").is_some_and(|kind| kind == "rotary")
}

pub fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    let is_authors = config.model_type() != JINA_V3;
    expect(config, "is_decoder", &false)?;
    expect(config, "type_vocab_size", &1)?;
    let heads = Heads::read(config)?;
    let feed_forward = FeedForward::read(config, Gate::None)?;
    let names = if is_authors { NAMES } else { TRANSFORMERS };
    let shared = EncoderConfig::new(config, names, heads, feed_forward)?;
    let rotary = |base, scaling| {
        let rotary = Some(rope::rotary(heads.width, 1.0, base, scaling)?);
        Ok::<_, Error>(Span {
            window: AttentionWindow::ALL,
            rotary,
        })
    };
    let kind: Option<String> = config.get("position_embedding_type")?;
    let (positions, span) = match kind.as_deref() {
        _ if !is_authors => {
            let rope = Rope::read(config)?;
            let scaling = rope.scaling(&[], shared.encoder_limits.max_positions)?;
            (
                Positions::None,
                rotary(rope.rope_theta.unwrap_or(BASE_IN_TRANSFORMERS), scaling)?,
            )
        }
        // The class' default.
        None | Some("rotary") => (
            Positions::None,
            rotary(
                config.get("rotary_emb_base")?.unwrap_or(BASE),
                Scaling::None,
            )?,
        ),
        Some("absolute") => (positions(config)?, Span::ALL),
        Some(other) => {
            return Err(Error::model(format!(
                "expected `position_embedding_type` `rotary` or `absolute`, but found `{other}`"
            )));
        }
    };
    let encoder_limits = match positions {
        Positions::None => without_table(config, shared.encoder_limits)?,
        _ => shared.encoder_limits,
    };
    Ok(EncoderConfig {
        encoder_limits,
        epsilon: config.epsilon(&["layer_norm_eps"], 1e-5)?,
        positions,
        types: 1,
        spans: vec![span],
        biases: Biases::ALL,
        head_input: HeadInput::first(Activation::Tanh),
        tasks: if is_authors { tasks(config)? } else { None },
        ..shared
    })
}

/// Rotary positions have no unused rows.
fn without_table(config: &ConfigFile, encoder_limits: EncoderLimits) -> Result<EncoderLimits> {
    let max_positions = config.require_size("max_position_embeddings")?;
    Ok(EncoderLimits {
        max_positions,
        longest: max_positions,
        ..encoder_limits
    })
}

/// The tasks in the authors' config.
fn tasks(config: &ConfigFile) -> Result<Option<Tasks>> {
    let Some(names) = task_names(config, "lora_adaptations")? else {
        return Ok(None);
    };
    let prompts: BTreeMap<String, String> = config.get("task_instructions")?.unwrap_or_default();
    if let Some(other) = prompts.keys().find(|name| !names.contains(name)) {
        return Err(Error::model(format!(
            "expected `task_instructions` for tasks in `lora_adaptations`, but found `{other}`"
        )));
    }
    // The defaults of the class.
    let rank = config.get_size("lora_rank")?.unwrap_or(4);
    let alpha: f32 = config.get("lora_alpha")?.unwrap_or(1.0);
    Ok(Some(Tasks {
        names,
        prompts,
        rank,
        scale: alpha / rank as f32,
    }))
}

/// The tasks that `config` lists under `key`.
pub fn task_names(config: &ConfigFile, key: &str) -> Result<Option<Vec<String>>> {
    let Some(names) = config.get::<Vec<String>>(key)? else {
        return Ok(None);
    };
    let distinct: BTreeSet<&String> = names.iter().collect();
    match distinct.len() == names.len() && (1..=MAX_TASKS).contains(&names.len()) {
        true => Ok(Some(names)),
        false => Err(Error::model(format!(
            "expected from 1 to {MAX_TASKS} different tasks in `{key}`, but found {} in {}",
            distinct.len(),
            names.len()
        ))),
    }
}

/// Reads the adapters next to a model for `transformers`, a folder for each task, in the form of the authors' files.
pub fn read_adapters(
    config: &mut EncoderConfig,
    weights: &mut Weights,
    folder: &Path,
) -> Result<()> {
    if ![NAMES, TRANSFORMERS]
        .iter()
        .any(|names| config.names.is(names))
        || config.tasks.is_some()
    {
        return Ok(());
    }
    let mut folders = BTreeMap::new();
    for (path, _) in files::list(folder)? {
        let name = path.file_name().and_then(OsStr::to_str).map(str::to_owned);
        // Hidden folders are not part of a model.
        if let Some(name) =
            name.filter(|name| !name.starts_with('.') && path.join(lora::CONFIG).is_file())
        {
            folders.insert(name, path);
        }
    }
    match folders.is_empty() {
        true => Ok(()),
        false => join_adapters(config, weights, folders.into_iter().collect()),
    }
}

/// Reads PEFT's adapters for tasks, each from its folder, in the form of the authors' files of jina-embeddings-v3.
pub fn join_adapters(
    config: &mut EncoderConfig,
    weights: &mut Weights,
    folders: Vec<(String, PathBuf)>,
) -> Result<()> {
    let mut ranks = Vec::with_capacity(folders.len());
    let mut modules = BTreeMap::<String, Vec<Option<[Weight; 2]>>>::new();
    for (task, (name, folder)) in folders.iter().enumerate() {
        let Matrices {
            rank,
            scale,
            named: mut matrices,
            sha256,
        } = Adapter::open(folder)?.matrices()?;
        weights.add_source(&format!("{name} {sha256}"));
        // The rank of an adapter without matrices means nothing.
        ranks.push(0);
        while let Some((name, narrowing)) = matrices.pop_first() {
            if let Some(module) = name.strip_suffix(".base_layer") {
                let own = full_name(config, weights, module)?;
                if weights.tensors[&format!("{own}.weight")] == narrowing {
                    continue;
                }
                return Err(Error::model(format!(
                    "the adapter has a `{module}` that differs from the model's"
                )));
            }
            let sides = [
                (".lora_A", ".lora_B"),
                (".lora_embedding_A", ".lora_embedding_B"),
            ];
            let found = sides
                .iter()
                .find_map(|(narrow, wide)| Some((name.strip_suffix(narrow)?, wide)));
            let pair = found.and_then(|(module, wide)| {
                Some((
                    module.to_owned(),
                    matrices.remove(&format!("{module}{wide}"))?,
                ))
            });
            let Some((module, mut widening)) = pair else {
                return Err(Error::model(format!(
                    "expected pairs of low-rank matrices in an adapter, but found only `{name}`"
                )));
            };
            if narrowing.shape.first() != Some(&rank) {
                return Err(Error::model(format!(
                    "expected an adapter of rank {rank}, which is `r` in `{}`, for `{module}`, but found the shape {:?}",
                    lora::CONFIG,
                    narrowing.shape
                )));
            }
            ranks[task] = rank;
            widening.values = scaled(widening.values, scale);
            let of_tasks = modules.entry(module).or_default();
            of_tasks.resize_with(folders.len(), || None);
            of_tasks[task] = Some([narrowing, widening]);
        }
    }
    let rank = ranks.iter().copied().max().unwrap_or_default();
    for (module, pairs) in modules {
        join_tasks(
            &full_name(config, weights, &module)?,
            &pairs,
            &ranks,
            weights,
        )?;
    }
    let names = folders.into_iter().map(|(name, _)| name).collect();
    config.tasks = Some(Tasks {
        rank,
        ..Tasks::unread(names)
    });
    Ok(())
}

fn matrix_shape(module: &str, weight: &Weight) -> Result<[usize; 2]> {
    weight.shape[..].try_into().map_err(|_| {
        Error::model(format!(
            "expected a matrix with adapters in `{module}`, but found the shape {:?}",
            weight.shape
        ))
    })
}

/// Replaces the weight of `module` by one with the matrices of all tasks, in the authors' form. Adapters with lower ranks
/// are filled up with zeros.
fn join_tasks(
    module: &str,
    pairs: &[Option<[Weight; 2]>],
    ranks: &[usize],
    weights: &mut Weights,
) -> Result<()> {
    let weight = weights
        .tensors
        .remove(&format!("{module}.weight"))
        .unwrap_or_else(|| unreachable!("the caller found the weight"));
    let [rows, columns] = matrix_shape(module, &weight)?;
    let rank = ranks.iter().copied().max().unwrap_or_default();
    let is_table = is_table(module);
    let [inputs, outputs] = if is_table {
        [rows, columns]
    } else {
        [columns, rows]
    };
    let mut joined = [Vec::new(), Vec::new()];
    for (pair, own) in pairs.iter().zip(ranks) {
        let Some([narrowing, widening]) = pair else {
            joined[0].resize(joined[0].len() + rank * inputs, 0.0);
            joined[1].resize(joined[1].len() + rank * outputs, 0.0);
            continue;
        };
        for (found, expected) in [(narrowing, [*own, inputs]), (widening, [outputs, *own])] {
            if found.shape != expected {
                return Err(Error::model(format!(
                    "expected an adapter of shape {expected:?} for `{module}`, but found {:?}",
                    found.shape
                )));
            }
        }
        let narrowing = with_columns(&transpose(&narrowing.values, inputs), *own, rank);
        let widening = with_columns(&widening.values, *own, rank);
        // PEFT's matrices of tables are transposed.
        match is_table {
            true => {
                joined[0].extend(narrowing);
                joined[1].extend(transpose(&widening, rank));
            }
            false => {
                joined[0].extend(transpose(&narrowing, rank));
                joined[1].extend(widening);
            }
        }
    }
    let names = [
        format!("{module}{ADAPTERS}.lora_A"),
        format!("{module}{ADAPTERS}.lora_B"),
    ];
    let sides = match is_table {
        true => [[inputs, rank], [rank, outputs]],
        false => [[rank, inputs], [outputs, rank]],
    };
    for ((name, values), [height, width]) in names.into_iter().zip(joined).zip(sides) {
        weights.tensors.insert(
            name,
            Weight {
                shape: vec![pairs.len(), height, width],
                values,
            },
        );
    }
    weights
        .tensors
        .insert(format!("{module}{ORIGINAL}"), weight);
    Ok(())
}

/// A matrix with zeros in further columns.
fn with_columns(values: &[f32], own: usize, columns: usize) -> Vec<f32> {
    values
        .chunks_exact(own)
        .flat_map(|row| row.iter().copied().chain(vec![0.0; columns - own]))
        .collect()
}

/// A module's name in the model, which may have a prefix.
fn full_name(config: &EncoderConfig, weights: &Weights, module: &str) -> Result<String> {
    let names = ["", config.names.prefix].map(|prefix| format!("{prefix}{module}"));
    names
        .into_iter()
        .find(|name| weights.has(&format!("{name}.weight")))
        .ok_or_else(|| {
            Error::model(format!(
                "expected a weight for the adapter of `{module}`, but found none"
            ))
        })
}

/// Whether a module is an embedding table.
fn is_table(module: &str) -> bool {
    module.contains("embeddings.")
}

/// Gives weights with adapters their plain names, and arranges the adapters by task, with each task's factor.
pub fn arrange_adapters(config: &EncoderConfig, weights: &mut Weights) -> Result<()> {
    let Some(tasks) = &config.tasks else {
        return Ok(());
    };
    let modules: Vec<String> = weights
        .names()
        .filter_map(|name| name.strip_suffix(ORIGINAL))
        .map(str::to_owned)
        .collect();
    if modules.is_empty() {
        return Err(no_adapters());
    }
    for module in modules {
        let mut take = |name: String| {
            let missing = || {
                Error::model(format!(
                    "expected the weight `{name}`, but found no such weight"
                ))
            };
            weights.tensors.remove(&name).ok_or_else(missing)
        };
        let weight = take(format!("{module}{ORIGINAL}"))?;
        let pair = [
            take(format!("{module}{ADAPTERS}.lora_A"))?,
            take(format!("{module}{ADAPTERS}.lora_B"))?,
        ];
        let [rows, columns] = matrix_shape(&module, &weight)?;
        let is_table = is_table(&module);
        let (count, rank) = (tasks.names.len(), tasks.rank);
        let expected = match is_table {
            true => [[count, rows, rank], [count, rank, columns]],
            false => [[count, rank, columns], [count, rows, rank]],
        };
        if [&pair[0].shape[..], &pair[1].shape[..]] != expected.each_ref().map(|shape| &shape[..]) {
            return Err(Error::model(format!(
                "expected adapters of shape {:?} and {:?} for {count} tasks in `{module}`, but found {:?} and {:?}",
                expected[0], expected[1], pair[0].shape, pair[1].shape
            )));
        }
        let [narrowing, widening] = pair;
        let numbers = count * rank;
        let [down, narrow, up] = adapter_names(&module);
        let arranged = match is_table {
            true if rows == 1 => {
                vec![(
                    type_adapter_name(&module),
                    vectors(&narrowing, &widening, tasks.scale),
                )]
            }
            true => {
                let widening = scaled(widening.values, tasks.scale);
                vec![
                    (
                        narrow,
                        Weight {
                            shape: vec![rows, numbers],
                            values: by_row(&narrowing),
                        },
                    ),
                    (
                        up,
                        Weight {
                            shape: vec![numbers, columns],
                            values: widening,
                        },
                    ),
                ]
            }
            false => {
                let widening = scaled(transposed(&widening), tasks.scale);
                vec![
                    (
                        down,
                        Weight {
                            shape: vec![numbers, columns],
                            values: narrowing.values,
                        },
                    ),
                    (
                        up,
                        Weight {
                            shape: vec![numbers, rows],
                            values: widening,
                        },
                    ),
                ]
            }
        };
        weights.tensors.insert(format!("{module}.weight"), weight);
        weights.tensors.extend(arranged);
    }
    Ok(())
}

fn no_adapters() -> Error {
    Error::model(
        "expected adapters (`…lora_A` and `…lora_B`) for the tasks in `lora_adaptations`, but found \
         none",
    )
    .with_hint("remove `lora_adaptations` and `task_instructions` from a model without tasks")
}

fn scaled(values: Vec<f32>, scale: f32) -> Vec<f32> {
    values.into_iter().map(|value| value * scale).collect()
}

/// Transposes the axes from (task, row, number) to (row, task, number).
fn by_row(narrowing: &Weight) -> Vec<f32> {
    let [tasks, rows, rank] = narrowing.shape[..] else {
        unreachable!("the caller checked the shape")
    };
    let parts = (0..rows).flat_map(|row| (0..tasks).map(move |task| task * rows + row));
    parts
        .flat_map(|part| &narrowing.values[part * rank..][..rank])
        .copied()
        .collect()
}

/// Transposes each task's matrix.
fn transposed(widening: &Weight) -> Vec<f32> {
    let [_, rows, rank] = widening.shape[..] else {
        unreachable!("the caller checked the shape")
    };
    let tasks = widening.values.chunks_exact(rows * rank);
    tasks.flat_map(|matrix| transpose(matrix, rank)).collect()
}

/// The product of both matrices of each task, in a table with one row.
fn vectors(narrowing: &Weight, widening: &Weight, scale: f32) -> Weight {
    let [tasks, rank, width] = widening.shape[..] else {
        unreachable!("the caller checked the shape")
    };
    let mut values = vec![0.0; tasks * width];
    for (place, row) in widening.values.chunks_exact(width).enumerate() {
        let own = &mut values[place / rank * width..][..width];
        let number = narrowing.values[place] * scale;
        own.iter_mut()
            .zip(row)
            .for_each(|(value, weight)| *value += number * weight);
    }
    Weight {
        shape: vec![tasks, width],
        values,
    }
}

/// Switches to the authors' names if a model for `transformers` has them, which it reads as well.
pub fn adapt(config: &mut EncoderConfig, weights: &Weights) -> Result<()> {
    let name = format!("{}emb_ln.weight", weights.prefix);
    if config.names.is(TRANSFORMERS) && weights.has(&name) {
        config.names = Names::of(NAMES)?;
    }
    Ok(())
}
