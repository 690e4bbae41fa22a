//! Heads for decoder families, which read the last token's vector: label scores, and `yes` and `no` logits.

use crate::encoder::{
    config::{EncoderConfig, HeadKind},
    heads::{logit_matrix, tie_words},
};
use crate::{
    files::{config::ConfigFile, module_list::has_pooling, weights::Weights},
    model_types::Family,
    plan::{Plan, model_card::pipeline_tag},
    sentence_transformers::{default_prompt, logit_score, max_tokens, modules::Modules},
};
use kivu::{
    error::{Error, Result},
    pipeline::{
        Task,
        classification::{
            ClassificationSettings, pair_template::PairTemplate, scores::ScoreFunction,
        },
    },
    tokenizer::Tokenizer,
};

/// Qwen3-Reranker's class, and its `model_type`.
const QWEN3: &str = "Qwen3ForCausalLM";
const QWEN3_TYPE: &str = "qwen3";

/// Weight of the output matrix.
const OUTPUT_MATRIX: &str = "lm_head.weight";

/// Class name suffix for text generators.
const GENERATOR: &str = "ForCausalLM";

/// A sentence specific to Qwen3-Reranker's template.
const JUDGE: &str = "Judge whether the Document meets the requirements based on the Query and the Instruct provided";

/// Parts of the template on single lines.
const PARTS: [&str; 7] = [
    JUDGE,
    "Note that the answer can only be",
    INSTRUCTION,
    "<Instruct>: ",
    "<Query>: ",
    "<Document>: ",
    "<think>",
];

/// Default instruction by Qwen3-Reranker's authors.
const INSTRUCTION: &str =
    "Given a web search query, retrieve relevant passages that answer the query";

/// Builds a decoder's scores as output `output`, if it has a head or ranks by two tokens' logits. Removes `config`'s
/// head, since the modules contain it.
pub fn head(
    plan: &Plan,
    config: &mut EncoderConfig,
    weights: &mut Weights,
    (tokenizer, output): (&[u8], &'static str),
) -> Result<Option<(ClassificationSettings, Modules)>> {
    if !config.names.has_decoder_head() {
        return Ok(None);
    }
    let hidden = config.encoder_limits.hidden;
    let settings = |labels, function, template| -> Result<ClassificationSettings> {
        let max_tokens = max_tokens(&plan.folder, &config.encoder_limits)?;
        let (output, query_prompt) = (output.to_owned(), None);
        Ok(ClassificationSettings {
            output,
            labels,
            function,
            max_tokens,
            template,
            query_prompt,
            padding: None,
            identifies_languages: false,
        })
    };
    if config
        .head
        .as_ref()
        .is_some_and(|head| head.kind == HeadKind::Tokens)
    {
        return Ok(None);
    }
    if let Some(head) = &config.head {
        let scores = weights.take_whole(
            &format!("{}.weight", config.names.labels),
            &[head.labels.len(), hidden],
        )?;
        let mut settings = settings(head.labels.clone(), head.function, None)?;
        settings.query_prompt = default_prompt(&plan.folder)?;
        settings.padding = padding(&ConfigFile::open(&plan.transformer()?)?)?;
        config.head = None;
        return Ok(Some((
            settings,
            Modules::of_last_token(hidden, scores.values.clone(), output),
        )));
    }
    let Some([yes, no]) = tokens(plan, config, (weights, tokenizer))? else {
        return Ok(None);
    };
    tie_words(config, weights, OUTPUT_MATRIX)?;
    let matrix = logit_matrix(config, weights, OUTPUT_MATRIX)?;
    let row = |token: u32| {
        matrix
            .values
            .chunks_exact(hidden)
            .nth(token as usize)
            .unwrap_or_default()
    };
    // The difference's sigmoid is the probability of `yes` among the two.
    let difference: Vec<f32> = row(yes)
        .iter()
        .zip(row(no))
        .map(|(yes, no)| yes - no)
        .collect();
    if difference.len() != hidden {
        return Err(Error::model(format!(
            "expected the tokens {yes} and {no} among the {} of the model",
            config.vocabulary
        )));
    }
    if let Some(prompt) = default_prompt(&plan.folder)?.filter(|prompt| prompt != INSTRUCTION) {
        return Err(Error::model(format!(
            "expected the default prompt `{INSTRUCTION}` of Qwen3-Reranker, or none, but found `{prompt}`"
        )));
    }
    let settings = settings(
        vec!["LABEL_0".to_owned()],
        ScoreFunction::Sigmoid,
        Some(template()),
    )?;
    Ok(Some((
        settings,
        Modules::of_last_token(hidden, difference, output),
    )))
}

/// The token that is dropped at the end of texts. Only Gemma's classes have one by default.
fn padding(config: &ConfigFile) -> Result<Option<u32>> {
    const KEY: &str = "pad_token_id";
    let is_default = config.model_type().starts_with("gemma") && !config.fields().contains_key(KEY);
    Ok(config.get(KEY)?.or(is_default.then_some(0)))
}

/// Tokens for the logit comparison, if the model ranks: named by its files, or `yes` and `no`.
fn tokens(
    plan: &Plan,
    config: &EncoderConfig,
    (weights, tokenizer): (&Weights, &[u8]),
) -> Result<Option<[u32; 2]>> {
    if let Some(tokens) = logit_score(&plan.folder, &PARTS)? {
        return Ok(Some(tokens));
    }
    let architecture = &config.encoder_limits.architecture;
    // Without a class, it is the model type. A generator's body has a prefix.
    let is_unnamed = Family::named(architecture).is_some()
        && !weights.prefix.is_empty()
        && config.names.label_weight(weights).is_none();
    if has_pooling(&plan.folder) || !architecture.ends_with(GENERATOR) && !is_unnamed {
        return Ok(None);
    }
    if plan.task.or_else(|| pipeline_tag(&plan.folder)) != Some(Task::TextRanking) {
        return Err(Error::model(format!(
            "expected an embedding model with `modules.json`, or a model that ranks, but found \
             `{}` without `modules.json`",
            architecture
        ))
        .with_hint("if it is a Qwen3-Reranker, build it with `--task text-ranking`"));
    }
    if ![QWEN3, QWEN3_TYPE].contains(&architecture.as_str()) {
        return Err(Error::model(format!(
            "expected a `{QWEN3}`, or a CrossEncoder of sentence-transformers with a `LogitScore` module, but found \
             `{}` alone: its files do not contain the text around a query and a document, nor which tokens are compared",
            architecture
        )));
    }
    let tokenizer = Tokenizer::from_json(tokenizer)?;
    let token = |word: &str| match tokenizer.ids(word)?[..] {
        [token] => Ok(token),
        _ => Err(Error::model(format!(
            "expected `{word}` to be a single token, but found several"
        ))),
    };
    Ok(Some([token("yes")?, token("no")?]))
}

/// Qwen3-Reranker's template, with its authors' default instruction.
fn template() -> PairTemplate {
    PairTemplate {
        prefix: format!(
            "<|im_start|>system\n{JUDGE}. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n\
             <|im_start|>user\n"
        ),
        first: format!("<Instruct>: {INSTRUCTION}\n<Query>: "),
        second: "\n<Document>: ".to_owned(),
        suffix: "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n".to_owned(),
    }
}
