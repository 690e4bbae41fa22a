//! Examples in the commands' help.

/// A command's examples, from `examples.txt`.
pub fn examples(command: &str) -> &'static str {
    let mut sections = include_str!("examples.txt").split("== ");
    let own = sections.find_map(|section| section.strip_prefix(command)?.strip_prefix('\n'));
    own.unwrap_or_default().trim_end()
}
