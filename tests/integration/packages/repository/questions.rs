//! Questions of users, each with the page and the section that answers it. The index in `docs/README.md` leads to the
//! page, and its table of contents to the section.

use std::fs;

use crate::tools::root;

/// A question, its page, its section, and a word of the answer.
const QUESTIONS: &str = "
    How do I serve a model from the hub? | bundles.md | Models by name | kivu serve
    Where are downloaded models, and how do I delete one? | bundles.md | Built models | kivu rm
    How do I build my fine-tuned model? | bundles.md | Building | kivu build
    Why was my model refused for its quality? | bundles.md | The quality gate | floor
    Which precision do I choose? | bundles.md | Choosing a precision | int8-blocks
    Is my model's family supported? | bundle-reference.md | Encoder families | ModernBERT
    Why was my model refused? | troubleshooting.md | A model cannot be built | expected
    Can I serve an ONNX export? | bundle-reference.md | ONNX exports | optimum-cli
    Which route makes embeddings in OpenAI's form? | api.md | POST /v1/embeddings | encoding_format
    How do I rank texts? | api.md | POST /rerank | query
    How do I classify with my own labels? | api.md | POST /models/{model} | candidate_labels
    What happens to a text that is too long? | api.md | POST /embed | truncate
    What does an error look like? | api.md | Errors | error
    Is a field of OpenAI's API supported? | request-fields.md | OpenAI | encoding_format
    How do I use Kivu with LangChain? | clients.md | LangChain | langchain
    How do I use Kivu with LiteLLM? | clients.md | LiteLLM | litellm
    How do I translate into a language? | generation.md | POST /translate | tgt_lang
    How do I configure memory for many models? | configuration.md | Models on demand | max_memory
    Where is the log, and what is in it? | configuration.md | Log | log
    Which metrics are there? | configuration.md | Metrics | /metrics
    How do I use a model in Python? | python.md | Tasks | embed
    How do I use a model in a browser? | node.md | WebAssembly | kivuml-wasm
    How do I search my files? | command-line.md | Search | kivu search
    What do exit codes mean? | command-line.md | Exit codes | 130
    How do I classify every row of a CSV file? | batch.md | CSV | --column
    How do I continue a job that was stopped? | batch.md | Stopping and resuming | resume
    What happens to a row that fails? | batch.md | Row errors | error
    How long are results kept? | batch.md | The function | KeepDays
    How do I call a model from Redshift? | batch.md | Amazon Redshift | CREATE
    How do I replace personal data, and restore it? | tutorials.md | A column of a table | kivu restore
    How do I deploy to AWS? | deploy.md | Quick start | make deploy
    How do I roll back? | deploy.md | Releases | deploy/operate rollback
    How do I deploy a model above 250 MB? | deploy.md | Container images | Package=image
    What does a million requests cost? | sizing.md | A million short requests | 2.66
    What does bge-m3 cost for 3 million texts a month? | sizing.md | Archive, image or snapshot | bge-m3
    How much memory does bge-m3 need? | sizing.md | Popular models by shape | bge-m3
    How do I create an API key, and limit it? | security.md | Keys | --per-day
    What is not defended against? | security.md | Not defended | ONNX Runtime
    What do I do when KivuSlow fires? | troubleshooting.md | KivuSlow | queue
    How do I use a GPU fleet? | fleet.md | Setup on AWS | Fleet=yes
    How fast is Kivu beside text-embeddings-inference? | benchmarks.md | Over HTTP | TEI
    How good is int8 for my own texts? | quality.md | Your texts and pairs | --pairs
    Where do I add a family? | design.md | Where to add features | family
";

/// The section with this heading, and those below it.
fn section<'page>(page: &'page str, heading: &str) -> Option<Vec<&'page str>> {
    let mut lines = page.lines();
    let first = lines.find(|line| line.trim_start_matches('#') == format!(" {heading}"))?;
    let level = |line: &str| line.chars().take_while(|&next| next == '#').count();
    let mut is_code = false;
    let rest = lines.take_while(|line| {
        is_code ^= line.trim_start().starts_with("```");
        is_code || !(1..=level(first)).contains(&level(line))
    });
    Some(rest.collect())
}

#[test]
fn each_question_has_an_answer_that_the_index_leads_to() {
    let docs = root().join("docs");
    let index = fs::read_to_string(docs.join("README.md")).unwrap();
    let mut faults = Vec::new();
    for line in QUESTIONS.trim().lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [question, page, heading, answer] = cells[..] else {
            panic!("expected four cells, but found {line}");
        };
        if !index.contains(&format!("({page})")) {
            faults.push(format!("{question} The index has no {page}"));
        }
        let text = fs::read_to_string(docs.join(page)).unwrap();
        match section(&text, heading) {
            None => faults.push(format!("{question} {page} has no section {heading}")),
            Some(lines) if !lines.iter().any(|line| line.contains(answer)) => {
                faults.push(format!("{question} {heading} in {page} has no {answer}"));
            }
            Some(_) => {}
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}
