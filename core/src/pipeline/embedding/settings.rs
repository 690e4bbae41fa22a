//! Embedding settings: outputs, limits and prompts.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::pipeline::embedding::{
    instructions,
    multi_vector::MultiVectorSettings,
    pooling::Pooling,
    roles::{self, RoleSettings, TextRole, UnknownRole},
    similarity::Similarity,
    sparse::{SparseSettings, StaticQueries},
};
use kivu_base::{Error, Result, error::quoted};

/// A text's vector kinds.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum VectorKind {
    /// A vector for the text.
    Dense,
    /// One weight per vocabulary token.
    Sparse,
    /// One vector per token.
    MultiVector,
}

impl fmt::Display for VectorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Embedding settings, from the model's files. At least one output; all come from one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Table")]
pub struct EmbeddingSettings {
    /// `None` if the model has no dense vectors.
    #[serde(flatten)]
    pub dense: Option<DenseSettings>,
    /// Maximum tokens per text, special tokens included.
    pub max_tokens: usize,
    /// Default prompt name.
    pub default_prompt: Option<String>,
    /// The texts that are put before inputs, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub prompts: BTreeMap<String, String>,
    /// The number of each prompt's tokens, which pooling leaves out; `None` if it includes prompts.
    pub unpooled: Option<BTreeMap<String, usize>>,
    /// Tasks for which the model has adapters, in the graph's order. Without a default task, each is the name of a prompt, too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<String>,
    /// The task of texts without one, in a model whose prompts are those of roles, whatever the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_task: Option<String>,
    /// Tokens in place of which the model reads images and sound; texts with them are refused.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub placeholders: Vec<u32>,
    /// `None` if the model has no sparse vectors.
    pub sparse: Option<SparseSettings>,
    /// `None` if the model has no multi-vectors for late interaction.
    pub multi_vector: Option<Box<MultiVectorSettings>>,
}

/// Dense vector settings: the graph output, and how it is pooled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DenseSettings {
    /// Output name; one vector per token, or per text if the graph pools.
    pub output: String,
    /// Pooling mode.
    pub pooling: Pooling,
    /// Whether vectors are scaled to length 1 by default.
    pub normalize: bool,
    /// Values per vector.
    pub dimensions: usize,
    /// How the model's vectors are compared in rankings.
    #[serde(skip_serializing_if = "Similarity::is_default")]
    pub similarity: Similarity,
}

/// Settings in a manifest, unchecked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    output: Option<String>,
    pooling: Option<Pooling>,
    normalize: Option<bool>,
    dimensions: Option<usize>,
    /// Cosines if absent, as in most models.
    similarity: Option<Similarity>,
    max_tokens: usize,
    default_prompt: Option<String>,
    #[serde(default)]
    prompts: BTreeMap<String, String>,
    unpooled: Option<BTreeMap<String, usize>>,
    #[serde(default)]
    tasks: Vec<String>,
    default_task: Option<String>,
    #[serde(default)]
    placeholders: Vec<u32>,
    sparse: Option<SparseSettings>,
    multi_vector: Option<Box<MultiVectorSettings>>,
}

impl TryFrom<Table> for EmbeddingSettings {
    type Error = String;

    fn try_from(table: Table) -> Result<Self, String> {
        let Table {
            max_tokens,
            default_prompt,
            prompts,
            unpooled,
            tasks,
            default_task,
            placeholders,
            sparse,
            multi_vector,
            ..
        } = table;
        let dense = match (
            table.output,
            table.pooling,
            table.normalize,
            table.dimensions,
        ) {
            (Some(output), Some(pooling), Some(normalize), Some(dimensions)) => {
                let similarity = table.similarity.unwrap_or_default();
                Some(DenseSettings {
                    output,
                    pooling,
                    normalize,
                    dimensions,
                    similarity,
                })
            }
            (None, None, None, None) if sparse.is_some() || multi_vector.is_some() => None,
            _ => {
                return Err(
                    "expected `output`, `pooling`, `normalize` and `dimensions` in `embedding`, but \
                            found only some of them"
                        .to_owned(),
                );
            }
        };
        let is_uncounted = |counts: &BTreeMap<String, usize>| {
            prompts.keys().any(|name| !counts.contains_key(name))
        };
        if unpooled.as_ref().is_some_and(is_uncounted) {
            return Err(
                "expected a number in `unpooled` for each of `prompts`, but found fewer".to_owned(),
            );
        }
        let mut without_prompt = tasks.iter().filter(|task| !prompts.contains_key(*task));
        match (&default_task, without_prompt.next()) {
            (None, Some(task)) => {
                return Err(format!(
                    "expected a prompt for each of `tasks`, but found none for `{task}`"
                ));
            }
            (Some(task), _) if !tasks.contains(task) => {
                return Err(format!(
                    "expected the `default_task` `{task}` among the `tasks`"
                ));
            }
            _ => {}
        }
        Ok(Self {
            dense,
            sparse,
            multi_vector,
            max_tokens,
            default_prompt,
            prompts,
            unpooled,
            tasks,
            default_task,
            placeholders,
        })
    }
}

impl EmbeddingSettings {
    /// The model's vector kinds with their dimensions.
    pub fn outputs(&self) -> Vec<(VectorKind, usize)> {
        self.kinds().collect()
    }

    fn kinds(&self) -> impl Iterator<Item = (VectorKind, usize)> {
        let dense = self
            .dense
            .as_ref()
            .map(|dense| (VectorKind::Dense, dense.dimensions));
        let sparse = self
            .sparse
            .as_ref()
            .map(|sparse| (VectorKind::Sparse, sparse.dimensions));
        let multi = self
            .multi_vector
            .as_ref()
            .map(|multi| (VectorKind::MultiVector, multi.dimensions));
        [dense, sparse, multi].into_iter().flatten()
    }

    /// Index of the outputs for this kind; `None` if the model has none.
    pub fn place(&self, kind: VectorKind) -> Option<usize> {
        self.kinds().position(|(found, _)| found == kind)
    }

    /// Whether the model has this vector kind.
    pub fn has(&self, kind: VectorKind) -> bool {
        self.place(kind).is_some()
    }

    /// Dense settings; an error for a model without dense vectors.
    pub fn dense(&self) -> Result<&DenseSettings> {
        self.dense
            .as_ref()
            .ok_or_else(|| self.lacks(VectorKind::Dense))
    }

    /// Sparse settings; an error for a model without sparse vectors.
    pub fn sparse(&self) -> Result<&SparseSettings> {
        self.sparse
            .as_ref()
            .ok_or_else(|| self.lacks(VectorKind::Sparse))
    }

    /// Multi-vector settings; an error for a model without multi-vectors.
    pub fn multi_vector(&self) -> Result<&MultiVectorSettings> {
        self.multi_vector
            .as_deref()
            .ok_or_else(|| self.lacks(VectorKind::MultiVector))
    }

    /// Error for a model without `kind` vectors; it names the kinds that the model has.
    pub fn lacks(&self, kind: VectorKind) -> Error {
        let found: Vec<_> = self
            .outputs()
            .iter()
            .map(|(kind, _)| kind.to_string())
            .collect();
        Error::invalid(format!(
            "expected a model with `{kind}` vectors, but found one with {}",
            quoted(&found)
        ))
        .with_hint("`GET /models` lists the `outputs` of each model")
    }

    /// The prompt with this name or for this role, or the default prompt.
    pub fn prompt(&self, name: Option<&str>) -> Result<Option<&str>> {
        Ok(self.find_prompt(name)?.map(|(_, prompt)| prompt.as_str()))
    }

    /// The prompt with this name, or for queries, with another instruction. Also returns its name. Refuses an instruction
    /// for a prompt without one.
    pub fn instructed(
        &self,
        name: Option<&str>,
        instruction: &str,
    ) -> Result<(Option<String>, String)> {
        let name = match name {
            Some(name) => Some(name),
            None => self.prompt_name(TextRole::Query.name())?,
        };
        let prompt = self
            .prompt(name)?
            .and_then(|prompt| instructions::replaced(prompt, instruction));
        let prompt = prompt.ok_or_else(|| {
            Error::invalid(
                "`instruction` is not supported: the model's prompt has none (`Instruct: …`)",
            )
            .with_hint("send the whole text before each text as `prompt`")
        })?;
        Ok((name.map(str::to_owned), prompt))
    }

    /// The number of tokens that pooling leaves out in texts with this prompt, as in [`prompt`](Self::prompt).
    pub fn unpooled(&self, name: Option<&str>) -> Result<usize> {
        let Some(counts) = &self.unpooled else {
            return Ok(0);
        };
        let found = self
            .find_prompt(name)?
            .map(|(name, _)| counts.get(name).copied().ok_or(name));
        found.unwrap_or(Ok(0)).map_err(|name| {
            Error::model(format!(
                "expected a number for the prompt `{name}` in `unpooled`, but found none"
            ))
        })
    }

    /// The name of the task that a request means, which may be spelled as in other packages.
    pub fn task_name(&self, task: &str) -> Result<&str> {
        let plain = |name: &str| name.replace(['-', '_'], ".");
        let is_same = |name: &&String| plain(name) == plain(task) || roles::are_same(name, task);
        let exact = self.tasks.iter().find(|name| *name == task);
        let found = exact.or_else(|| self.tasks.iter().find(is_same));
        found
            .map(String::as_str)
            .ok_or_else(|| match self.tasks.is_empty() {
                true => Error::invalid(format!(
                    "`task` is not supported: the model has no tasks, but found `{}`",
                    shown(task)
                ))
                .with_hint("its `prompt_name` may be a role, such as `query`"),
                false => Error::invalid(format!(
                    "expected a `task` among {}, but found `{}`",
                    quoted(&self.tasks),
                    shown(task)
                )),
            })
    }

    /// The number of the task for texts with this prompt, as in [`prompt`](Self::prompt); 0 for none.
    pub fn task_of_prompt(&self, name: Option<&str>) -> Result<u32> {
        if self.tasks.is_empty() {
            return Ok(0);
        }
        if let Some(default) = &self.default_task {
            let named = name.and_then(|name| self.task_without_prompt(name));
            return Ok(self.task_number(named.unwrap_or(default)));
        }
        Ok(self
            .find_prompt(name)?
            .map_or(0, |(name, _)| self.task_number(name)))
    }

    /// The task that a prompt's name or a role means, in a model whose tasks have no prompts.
    fn task_without_prompt(&self, name: &str) -> Option<&str> {
        self.default_task
            .as_ref()
            .and_then(|_| self.task_name(name).ok())
    }

    /// A task's number, from 1 on; 0 for none.
    pub fn task_number(&self, name: &str) -> u32 {
        let place = self.tasks.iter().position(|task| task == name);
        place.map_or(0, |place| u32::try_from(place + 1).unwrap_or(0))
    }

    /// A prompt with its name.
    fn find_prompt(&self, name: Option<&str>) -> Result<Option<(&String, &String)>> {
        let Some(name) = name.or(self.default_prompt.as_deref()) else {
            return Ok(None);
        };
        let prompts = &self.prompts;
        let of_role = || prompts.get_key_value(roles::prompt(prompts, name).ok()??);
        let prompt = prompts.get_key_value(name).or_else(of_role);
        if prompt.is_some() {
            return Ok(prompt);
        }
        let has_default = self.has_roles() && roles::text_role(name).is_some();
        if has_default || self.task_without_prompt(name).is_some() {
            return Ok(self
                .default_prompt
                .as_ref()
                .and_then(|name| prompts.get_key_value(name)));
        }
        let known: Vec<_> = prompts.keys().collect();
        let known = if known.is_empty() {
            "none".into()
        } else {
            quoted(&known)
        };
        Err(Error::invalid(format!("unknown prompt `{name}`"))
            .with_hint(format!("the model's prompts: {known}")))
    }

    /// Prompt name for a role, such as `query` or `search_document`, or for a prompt with this name. `None` selects the
    /// default prompt, if the model has none for the role.
    pub fn prompt_name(&self, role: &str) -> Result<Option<&str>> {
        let prompts = &self.prompts;
        if let Some((name, _)) = prompts.get_key_value(role) {
            return Ok(Some(name));
        }
        if let Some(task) = self.task_without_prompt(role) {
            return Ok(Some(task));
        }
        let of_role = roles::prompt(prompts, role);
        let text_role = roles::text_role(role).filter(|_| self.has_roles());
        if let (Ok(None), Some(role)) = (&of_role, text_role) {
            return Ok(Some(role.name()));
        }
        of_role.map_err(|UnknownRole| {
            let prompts = prompts.keys().map(String::as_str);
            let known: BTreeSet<_> = UnknownRole::known().into_iter().chain(prompts).collect();
            let known: Vec<_> = known.into_iter().collect();
            Error::invalid(format!(
                "expected a role among {}, but found `{}`",
                quoted(&known),
                shown(role)
            ))
        })
    }

    /// Whether texts in a role differ by more than prompts.
    fn has_roles(&self) -> bool {
        self.multi_vector.is_some() || self.static_queries().is_some()
    }

    /// Queries that the model does not read.
    pub fn static_queries(&self) -> Option<&StaticQueries> {
        self.sparse.as_ref()?.queries.as_deref()
    }

    /// Text form for a role, if the model has one.
    pub fn form(&self, role: TextRole) -> Option<&RoleSettings> {
        let of_queries = self.static_queries().filter(|_| role == TextRole::Query);
        let form = of_queries.map(|queries| &queries.form);
        let form = form.or_else(|| self.multi_vector.as_ref().map(|multi| multi.role(role)));
        form.filter(|form| **form != RoleSettings::default())
    }

    /// Role for a prompt name: documents, unless the name is a query prompt.
    pub fn text_role(&self, name: Option<&str>) -> TextRole {
        let name = name.or(self.default_prompt.as_deref());
        name.and_then(roles::text_role)
            .unwrap_or(TextRole::Document)
    }
}

/// The beginning of a name in a request.
fn shown(name: &str) -> String {
    name.chars()
        .take(40)
        .collect::<String>()
        .escape_debug()
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::embedding::{multi_vector::MaxSim, sparse::SparseValues};

    const DENSE: &str =
        "output = \"x\"\npooling = \"cls\"\nnormalize = true\ndimensions = 8\nmax_tokens = 16\n";

    #[test]
    fn manifests_of_dense_models_are_as_they_were() {
        let settings: EmbeddingSettings = toml::from_str(DENSE).unwrap();
        assert_eq!(settings.outputs(), [(VectorKind::Dense, 8)]);
        assert_eq!(toml::to_string(&settings).unwrap(), DENSE);
        let partial = DENSE.replace("pooling = \"cls\"\n", "");
        assert!(toml::from_str::<EmbeddingSettings>(&partial).is_err());
        assert!(toml::from_str::<EmbeddingSettings>("max_tokens = 16").is_err());
    }

    #[test]
    fn unpooled_tokens_are_counted_for_each_prompt() {
        let counted =
            "default_prompt = \"query\"\n\n[prompts]\nquery = \"Q: \"\n\n[unpooled]\nquery = 4\n";
        let settings: EmbeddingSettings = toml::from_str(&format!("{DENSE}{counted}")).unwrap();
        assert_eq!(
            (
                settings.unpooled(None).unwrap(),
                settings.unpooled(Some("query")).unwrap()
            ),
            (4, 4)
        );
        assert!(settings.unpooled(Some("other")).is_err());
        assert_eq!(
            toml::to_string(&settings).unwrap(),
            format!("{DENSE}{counted}")
        );
        let fewer = format!("{DENSE}{counted}").replace("query = 4", "");
        insta::assert_snapshot!(
            toml::from_str::<EmbeddingSettings>(&fewer).unwrap_err().message(),
            @"expected a number in `unpooled` for each of `prompts`, but found fewer"
        );
    }

    #[test]
    fn queries_need_no_prompt_in_a_model_with_roles() {
        let mut settings: EmbeddingSettings = toml::from_str(DENSE).unwrap();
        assert_eq!(settings.prompt_name("query").unwrap(), None);
        settings.multi_vector = Some(Box::new(MultiVectorSettings {
            output: "token_vectors".into(),
            dimensions: 8,
            skips_first: false,
            score: MaxSim::Sum,
            query: RoleSettings::default(),
            document: RoleSettings::default(),
        }));
        assert_eq!(settings.prompt_name("search_query").unwrap(), Some("query"));
        assert_eq!(settings.prompt_name("document").unwrap(), Some("document"));
        assert_eq!(settings.prompt(Some("query")).unwrap(), None);
        settings.prompts.insert("other".into(), "text: ".into());
        settings.default_prompt = Some("other".into());
        assert_eq!(settings.prompt(Some("query")).unwrap(), Some("text: "));
        assert_eq!(
            settings.text_role(settings.prompt_name("query").unwrap()),
            TextRole::Query
        );
    }

    #[test]
    fn a_model_without_the_requested_output_is_refused() {
        let mut settings: EmbeddingSettings = toml::from_str(DENSE).unwrap();
        settings.dense = None;
        settings.sparse = Some(SparseSettings {
            output: "largest_logits".into(),
            dimensions: 30,
            values: SparseValues::Vocabulary { logarithms: 1 },
            max_active_dims: None,
            queries: None,
        });
        let text = toml::to_string(&settings).unwrap();
        assert_eq!(
            toml::from_str::<EmbeddingSettings>(&text).unwrap(),
            settings
        );
        insta::assert_snapshot!(
            settings.dense().unwrap_err(),
            @"expected a model with `dense` vectors, but found one with `sparse`; `GET /models` lists the `outputs` of each model"
        );
    }
}
