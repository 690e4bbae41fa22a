//! A model's task: from its architecture, its labels and its model card's pipeline tag.

use std::str::FromStr;

use serde::Deserialize;

use serde_json::{Map, Value};

use super::{
    Plan,
    label_maps::{self, LABEL_IDS, LABELS, is_entailment},
    model_card::pipeline_tag,
    opened_model::OpenedModel,
    recipe::Strategy,
};
use crate::files::{config::ConfigFile, module_list::has_pooling};
use kivu::{Error, Result, error::quoted, pipeline::Task, repository::TaskSettings};

/// Names for sparse vectors: the model card tags of SPLADE models, which a build can be asked for like a task.
pub const SPARSE: [&str; 3] = ["sparse-encoder", "splade", "sparse"];

/// The task that a build is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct RequestedTask {
    /// The bundle's task.
    pub task: Task,
    /// Whether its vectors have to be sparse.
    pub is_sparse: bool,
}

impl FromStr for RequestedTask {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let is_sparse = SPARSE.contains(&name);
        let task = match is_sparse {
            true => Task::FeatureExtraction,
            false => name.parse()?,
        };
        Ok(Self { task, is_sparse })
    }
}

impl TryFrom<String> for RequestedTask {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        name.parse()
    }
}

/// Refuses a model without sparse vectors if the build is asked for them.
pub fn require_sparse(plan: &Plan, source: &OpenedModel<'_>) -> Result<()> {
    let has_sparse = matches!(
        &source.settings,
        TaskSettings::Embedding(settings) if settings.sparse.is_some()
    );
    if has_sparse || !plan.is_sparse {
        return Ok(());
    }
    Err(Error::model(format!(
        "`{}` has no sparse vectors: they need a masked language model (`…ForMaskedLM`) or a \
         sparse head",
        source.architecture
    ))
    .with_hint(format!(
        "build it with `--task {}`",
        Task::FeatureExtraction
    )))
}

/// Refuses a model without a template for pairs if the recipe names one.
pub fn require_template(plan: &Plan, source: &OpenedModel<'_>) -> Result<()> {
    let has_template = matches!(
        &source.settings,
        TaskSettings::Classification(settings) if settings.template.is_some()
    );
    match &plan.template {
        Some(name) if !has_template => Err(Error::model(format!(
            "the template `{name}` is for rankers on decoders, but the model is another (`{}`)",
            source.architecture
        ))
        .with_hint("remove `template` from the recipe")),
        _ => Ok(()),
    }
}

/// The bundle's task, and other tasks as plausible.
///
/// A requested task must be one that the model can do. Otherwise the model card decides between the plausible ones.
pub fn task(
    plan: &Plan,
    settings: &TaskSettings,
    generates: &'static [Task],
) -> Result<(Task, Vec<Task>)> {
    if let Some(task) = plan.task {
        require(task, plan.strategy, settings, generates)?;
        return Ok((task, Vec::new()));
    }
    Ok(choose(plan, plausible(settings, generates)))
}

/// Chooses the task: the requested one, else the model card's if it is plausible, else the first plausible one. Also
/// returns the others if it guessed.
pub fn choose(plan: &Plan, plausible: Vec<Task>) -> (Task, Vec<Task>) {
    if let Some(task) = plan.task {
        return (task, Vec::new());
    }
    let card = plan
        .adapter
        .iter()
        .chain([&plan.folder])
        .find_map(|folder| pipeline_tag(folder));
    let task = card
        .filter(|task| plausible.contains(task))
        .unwrap_or(plausible[0]);
    let others = plausible
        .into_iter()
        .filter(|other| *other != task && card != Some(task));
    (task, others.collect())
}

/// Names an entailment model's labels as in `label2id`, in which `transformers` looks for the entailment. Without a
/// single entailment, the model is refused, or returned with a warning if the build allows it.
pub fn name_entailment(plan: &Plan, labels: &mut [String]) -> Result<Option<String>> {
    let config = ConfigFile::open(&plan.described()?)?;
    let listed: Option<Map<String, Value>> = config.get(LABEL_IDS)?;
    let key = if listed.is_some() { LABEL_IDS } else { LABELS };
    let is_allowed = plan.allow.iter().any(|allowed| allowed == key);
    let ids = listed
        .as_ref()
        .map(|map| label_maps::ids(map).unwrap_or_default());
    let names: Vec<(String, usize)> = match ids {
        None => labels.iter().cloned().zip(0..).collect(),
        Some(ids) => ids
            .into_iter()
            .filter(|(_, id)| *id < labels.len())
            .map(|(label, id)| (label.to_owned(), id))
            .collect(),
    };
    let is_one =
        |labels: &[String]| labels.iter().filter(|label| is_entailment(label)).count() == 1;
    let mut renamed = labels.to_vec();
    for (label, id) in &names {
        renamed[*id].clone_from(label);
    }
    let found: Vec<String> = names.into_iter().map(|(label, _)| label).collect();
    let is_named_once = is_one(&found);
    if is_named_once && is_one(&renamed) && !is_allowed {
        labels.clone_from_slice(&renamed);
        return Ok(None);
    }
    // As the pipeline does.
    let named = labels.iter().find(|label| is_entailment(label));
    let entailment = named.or(labels.last()).map_or("", String::as_str);
    if is_allowed {
        return Ok(Some(format!(
            "`{key}` in `{}` was ignored on request: `{entailment}` counts as the entailment, so results may differ from \
             the model authors'",
            ConfigFile::NAME
        )));
    }
    // Several ids may have the entailment's name.
    let (key, found) = match is_named_once {
        true => (LABELS, renamed),
        false => (key, found),
    };
    let hint = match config.fields().contains_key(key) && !is_named_once {
        true => format!("`--allow {key}` to take `{entailment}` for the entailment"),
        false => format!("name the labels in `{LABELS}` and `{LABEL_IDS}`"),
    };
    Err(Error::model(format!(
        "expected one label that begins with `entail` in `{key}` of `{}` for `{}`, but found {}",
        ConfigFile::NAME,
        Task::ZeroShotClassification,
        quoted(&found)
    ))
    .with_hint(format!("use another task, or {hint}")))
}

/// Heads for unsupported tasks, by class name suffix.
const OTHER_HEADS: [&str; 3] = [
    "ForQuestionAnswering",
    "ForMultipleChoice",
    "ForNextSentencePrediction",
];

/// A note on an embedding model's head that is left out. Refuses a model made for its head, unless the build asks for
/// embeddings.
pub fn unused_head(plan: &Plan, source: &OpenedModel<'_>) -> Result<Option<String>> {
    let architecture = &source.architecture;
    let TaskSettings::Embedding(settings) = &source.settings else {
        return Ok(None);
    };
    // Sparse vectors come from the head. sentence-transformers files say that the model is for embeddings.
    if settings.dense.is_none() || !architecture.contains("For") || has_pooling(&plan.folder) {
        let heads = quoted(&source.unused_heads);
        return Ok((!heads.is_empty()).then(|| {
            format!("the weights of {heads} are left out: the model computes embeddings")
        }));
    }
    let is_requested =
        plan.task.is_some() || pipeline_tag(&plan.folder) == Some(Task::FeatureExtraction);
    if !is_requested && OTHER_HEADS.iter().any(|head| architecture.ends_with(head)) {
        return Err(Error::model(format!(
            "expected a model with a head that Kivu runs, or without one, but found \
             `{architecture}`"
        ))
        .with_hint(format!(
            "use `--task {}` to leave out the head and compute embeddings",
            Task::FeatureExtraction
        )));
    }
    Ok(Some(format!(
        "the head of `{architecture}` is left out: the model computes embeddings"
    )))
}

/// Refuses a task that the model cannot do.
fn require(
    task: Task,
    strategy: Option<Strategy>,
    settings: &TaskSettings,
    generates: &'static [Task],
) -> Result<()> {
    let found = match settings {
        TaskSettings::Seq2Seq(_) if generates == [Task::Translation] => "one that translates",
        TaskSettings::Seq2Seq(_) => "one that generates texts",
        TaskSettings::Embedding(_) => "one without a label head, which computes embeddings",
        TaskSettings::Classification(_) => "one with a label head",
        TaskSettings::Listwise(_) => "one that ranks",
        TaskSettings::TokenClassification(_) => "one with a token label head",
        TaskSettings::LabelScores(_) => "one that scores the labels in requests",
        TaskSettings::ZeroShotEntities(_) => "one that finds entities by the labels in requests",
    };
    let has_strategy = matches!(task, Task::TextRanking | Task::ZeroShotClassification);
    let can = settings.fit(task)
        && match settings {
            TaskSettings::Seq2Seq(_) => generates.contains(&task),
            TaskSettings::Embedding(_) => !has_strategy || strategy != Some(Strategy::Model),
            TaskSettings::Classification(_)
            | TaskSettings::Listwise(_)
            | TaskSettings::LabelScores(_) => strategy != Some(Strategy::Embedding),
            TaskSettings::TokenClassification(_) | TaskSettings::ZeroShotEntities(_) => true,
        };
    if can {
        return Ok(());
    }
    let error = Error::model(format!("expected a model for `{task}`, but found {found}"));
    Err(
        match strategy.is_some() && require(task, None, settings, generates).is_ok() {
            true => error.with_hint("omit `strategy` in the recipe"),
            false => error,
        },
    )
}

/// Tasks that a model was probably trained for, most likely first.
fn plausible(settings: &TaskSettings, generates: &'static [Task]) -> Vec<Task> {
    let settings = match settings {
        TaskSettings::Seq2Seq(_) => return generates.to_vec(),
        TaskSettings::Embedding(_) => return vec![Task::FeatureExtraction],
        TaskSettings::Listwise(_) => return vec![Task::TextRanking],
        // GLiNER2 has heads for both tasks.
        TaskSettings::ZeroShotEntities(settings) if settings.schema_token.is_some() => {
            return vec![Task::TokenClassification, Task::ZeroShotClassification];
        }
        TaskSettings::TokenClassification(_) | TaskSettings::ZeroShotEntities(_) => {
            return vec![Task::TokenClassification];
        }
        TaskSettings::LabelScores(_) => return vec![Task::ZeroShotClassification],
        TaskSettings::Classification(settings) => settings,
    };
    match &settings.labels[..] {
        [label] if label.to_lowercase().starts_with("label_") => vec![Task::TextRanking],
        [_] => vec![Task::TextRanking, Task::TextClassification],
        labels if labels.iter().any(|label| is_entailment(label)) => {
            vec![Task::TextClassification, Task::ZeroShotClassification]
        }
        _ => vec![Task::TextClassification],
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::files::model_folder::ModelFolder;
    use kivu::pipeline::classification::{ClassificationSettings, scores::ScoreFunction};

    fn of_labels(labels: &[&str], card: &str) -> (Task, Vec<Task>) {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("README.md"), card).unwrap();
        let plan = Plan {
            folder: ModelFolder::new(folder.path()),
            ..Plan::default()
        };
        let settings = ClassificationSettings {
            output: "logits".into(),
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
            function: ScoreFunction::Softmax,
            max_tokens: 8,
            template: None,
            query_prompt: None,
            padding: None,
            identifies_languages: false,
        };
        task(&plan, &TaskSettings::Classification(settings), &[]).unwrap()
    }

    #[test]
    fn labels_and_the_model_card_decide() {
        use Task::{TextClassification, TextRanking, ZeroShotClassification};
        const NLI: [&str; 3] = ["CONTRADICTION", "NEUTRAL", "ENTAILMENT"];
        let tagged =
            |tag: &str| format!("---\nlicense: mit\npipeline_tag: {tag}\n---\n# A model\n");
        assert_eq!(
            of_labels(&["good", "bad"], ""),
            (TextClassification, vec![])
        );
        assert_eq!(
            of_labels(&NLI, ""),
            (TextClassification, vec![ZeroShotClassification])
        );
        assert_eq!(
            of_labels(&NLI, &tagged("zero-shot-classification")),
            (ZeroShotClassification, vec![])
        );
        assert_eq!(
            of_labels(&NLI, &tagged("text-classification")),
            (TextClassification, vec![])
        );
        assert_eq!(
            of_labels(&NLI, &tagged("fill-mask")),
            (TextClassification, vec![ZeroShotClassification])
        );
        assert_eq!(
            of_labels(&["LABEL_0"], &tagged("text-classification")),
            (TextRanking, vec![])
        );
        assert_eq!(
            of_labels(&["toxic"], ""),
            (TextRanking, vec![TextClassification])
        );
        assert_eq!(
            of_labels(&["toxic"], &tagged("'text-classification'")),
            (TextClassification, vec![])
        );
        // Only the front matter has tags.
        assert_eq!(
            of_labels(&["toxic"], "pipeline_tag: text-classification").0,
            TextRanking
        );
    }
}
