//! Heads in weights or exports whose `config.json` names no class with a head. As in `transformers`, where each task has
//! a class of its own, the requested task decides.

use super::{
    config::{Head, HeadKind, Names},
    graph::ANSWERS,
};
use crate::{
    files::{
        config::ConfigFile,
        model_folder::ModelFolder,
        module_list::{has_pooling, modules},
        weights::Weights,
    },
    plan::{Plan, model_card::pipeline_tag, recipe::Strategy},
    sentence_transformers::makes_vectors,
};
use kivu::{Error, Result, pipeline::Task};

/// The kind of head that the requested task needs.
pub fn kind_for_task(plan: &Plan) -> Option<HeadKind> {
    match plan.task? {
        Task::TokenClassification => Some(HeadKind::Tokens),
        Task::TextClassification => Some(HeadKind::Text),
        Task::TextRanking | Task::ZeroShotClassification
            if plan.strategy != Some(Strategy::Embedding) =>
        {
            Some(HeadKind::Text)
        }
        _ => None,
    }
}

/// Whether `config` describes a classifier.
pub fn reads_labels(plan: &Plan, config: &ConfigFile) -> Result<bool> {
    let is_for_labels = match config.names_head() {
        true => Head::kind(config).is_some(),
        false => kind_for_task(plan).is_some() || is_transformer_only(&plan.folder)?,
    };
    Ok(is_for_labels && !makes_vectors(&plan.folder)?)
}

/// The label head `found`, if the task asks for it; `None` if the build asks for vectors. Refused if nothing decides.
pub fn label_head(plan: &Plan, config: &ConfigFile, found: &str) -> Result<Option<Head>> {
    let kind = match (kind_for_task(plan), plan.task) {
        (Some(kind), _) => kind,
        // A CrossEncoder, whose one module is the transformer with its head.
        (None, None) if is_transformer_only(&plan.folder)? => HeadKind::Text,
        (None, None) if !has_pooling(&plan.folder) && !asks_for_vectors(plan) => {
            return Err(Error::model(format!(
                "the model has a label head (`{found}`), but `architectures` in `config.json` \
                 names no class with one"
            ))
            .with_hint(format!(
                "use `--task` with `{}`, `{}`, `{}` or `{}` to use the head, or `--task {}` to \
                 leave it out",
                Task::TextClassification,
                Task::TextRanking,
                Task::ZeroShotClassification,
                Task::TokenClassification,
                Task::FeatureExtraction
            )));
        }
        (None, _) => return Ok(None),
    };
    Head::of(kind, config).map(Some)
}

/// The label head in `weights`: see [`label_head`].
pub fn in_weights(
    plan: &Plan,
    config: &ConfigFile,
    names: &Names,
    weights: &Weights,
) -> Result<Option<Head>> {
    let (names_head, has_modules) = (config.names_head(), has_pooling(&plan.folder));
    match names.label_weight(weights) {
        Some(found) if !names_head => return label_head(plan, config, &found),
        // The cosines of an embedding model are not the scores of its head.
        Some(found) if !has_modules && plan.strategy.is_none() => match plan.task {
            None | Some(Task::FeatureExtraction) => {}
            Some(task) => {
                return Err(Error::model(format!(
                    "expected `architectures` to name the label head of `{found}` for `{task}`, \
                     such as `…ForSequenceClassification`, but found `{}`",
                    config.architecture()
                ))
                .with_hint(format!(
                    "correct it, or use `--task {}` to leave out the head",
                    Task::FeatureExtraction
                )));
            }
        },
        _ => {}
    }
    let is_decided = names_head || has_modules || plan.task.is_some() || asks_for_vectors(plan);
    match weights.names().find(|name| name.starts_with(ANSWERS)) {
        Some(found) if !is_decided => Err(Error::model(format!(
            "the model has a head that finds answers (`{found}`), which Kivu does not run"
        ))
        .with_hint(format!(
            "use `--task {}` to leave it out and compute embeddings",
            Task::FeatureExtraction
        ))),
        _ => Ok(None),
    }
}

fn is_transformer_only(folder: &ModelFolder) -> Result<bool> {
    let list = modules(folder)?;
    Ok(matches!(&list[..], [only] if only.class() == "Transformer"))
}

/// Whether the model is for vectors by its model card.
fn asks_for_vectors(plan: &Plan) -> bool {
    pipeline_tag(&plan.folder) == Some(Task::FeatureExtraction)
}
