//! A request's instructions: they replace the one in a model's own prompt.

use kivu_base::{Error, Result};

/// Maximum bytes of a request's prompt or instruction, which is read with each of its texts.
pub const MAX_BYTES: usize = 16 * 1024;
/// What precedes an instruction, which ends with its line, in embedding models' prompts and Qwen3-Reranker's template.
const MARKERS: [&str; 2] = ["<Instruct>: ", "Instruct: "];

/// The prompt with another instruction; `None` if it has none.
pub fn replaced(prompt: &str, instruction: &str) -> Option<String> {
    let start = MARKERS
        .iter()
        .find_map(|marker| Some(prompt.find(marker)? + marker.len()))?;
    let end = start + prompt[start..].find('\n')?;
    Some([&prompt[..start], instruction, &prompt[end..]].concat())
}

/// Refuses an empty instruction, and one that is too long. Errors call it `name`.
pub fn check_instruction(name: &str, instruction: &str) -> Result<()> {
    if instruction.trim().is_empty() {
        return Err(Error::invalid(format!(
            "expected a text in `{name}`, but found an empty one"
        ))
        .in_field(name)
        .with_hint("leave it out"));
    }
    check_size(name, instruction)
}

/// Refuses a prompt that is too long. Errors call it `name`.
pub fn check_size(name: &str, prompt: &str) -> Result<()> {
    match prompt.len() {
        found if found > MAX_BYTES => Err(Error::too_large(format!(
            "expected `{name}` of at most {MAX_BYTES} bytes, but found {found}"
        ))
        .in_field(name)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_is_the_rest_of_its_line() {
        let replaced = |prompt: &str| replaced(prompt, "find proofs");
        let qwen = "Instruct: Given a web search query, retrieve passages\nQuery:";
        assert_eq!(replaced(qwen).unwrap(), "Instruct: find proofs\nQuery:");
        assert_eq!(
            replaced("<Instruct>: x\n<Query>: ").unwrap(),
            "<Instruct>: find proofs\n<Query>: "
        );
        for other in [
            "",
            "query: ",
            "Instruct: without a line's end",
            "Represent this sentence: ",
        ] {
            assert_eq!(replaced(other), None, "{other}");
        }
    }

    #[test]
    fn unusable_instructions_are_refused() {
        let refusals = [" \n".to_owned(), "x".repeat(MAX_BYTES + 1)];
        let refusals = refusals.map(|text| {
            check_instruction("instruction", &text)
                .unwrap_err()
                .to_string()
        });
        insta::assert_snapshot!(refusals.join("\n"), @"
        expected a text in `instruction`, but found an empty one; leave it out
        expected `instruction` of at most 16384 bytes, but found 16385
        ");
        check_size("prompt", "").unwrap();
    }
}
