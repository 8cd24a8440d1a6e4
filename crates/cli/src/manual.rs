//! `paceline completions` and `paceline manual`: what the command says about itself, for shells, for `man` and for `docs/`. All
//! of it is made from the definitions that parse the command line.

use anyhow::{Context, Result};
use clap::{Args, Command};
use clap_complete::Shell;
use std::{
    fs,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

/// Columns of help texts in the reference, whatever terminal it is made in.
const WIDTH: usize = 100;

/// Print what makes a shell complete this command's arguments.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  paceline completions bash > ~/.local/share/bash-completion/completions/paceline
  paceline completions zsh > ~/.zfunc/_paceline
  paceline completions fish > ~/.config/fish/completions/paceline.fish")]
pub struct CompletionsArgs {
    /// Which shell.
    pub shell: Shell,
}

/// Write manual pages, one for each command, or print all help texts as one page of Markdown.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  paceline manual ~/.local/share/man/man1
  paceline manual --markdown > docs/commands.md")]
pub struct ManualArgs {
    /// Where manual pages go (made if it is not there).
    #[arg(value_name = "FOLDER", required_unless_present = "markdown")]
    pub folder: Option<PathBuf>,

    /// Print Markdown instead.
    #[arg(long, conflicts_with = "folder")]
    pub markdown: bool,
}

/// Print completions of `command`.
pub fn completions(arguments: &CompletionsArgs, command: Command) -> Result<ExitCode> {
    // Shells would offer what only this program itself calls.
    let shown = command.get_subcommands().filter(|one| !one.is_hide_set()).cloned();
    let mut command =
        Command::new("paceline").version(env!("CARGO_PKG_VERSION")).subcommands(shown);
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "paceline", &mut text);
    io::stdout().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Write or print the manual of `command`.
pub fn manual(arguments: &ManualArgs, mut command: Command) -> Result<ExitCode> {
    match &arguments.folder {
        None => {
            command.build();
            io::stdout().write_all(markdown(&command).as_bytes())?;
        }
        Some(folder) => {
            let cannot = || format!("manual pages cannot be written to {}", folder.display());
            fs::create_dir_all(folder).with_context(cannot)?;
            clap_mangen::generate_to(command, folder).with_context(cannot)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A command and those below it that people call, each with its whole name.
fn all(command: &Command) -> Vec<(String, &Command)> {
    let mut found = vec![("paceline".to_string(), command)];
    let mut place = 0;
    // Bounded: every command is there once.
    while let Some((name, command)) = found.get(place).cloned() {
        let below = command.get_subcommands();
        let below = below.filter(|one| one.get_name() != "help" && !one.is_hide_set());
        found.extend(below.map(|one| (format!("{name} {}", one.get_name()), one)));
        place += 1;
    }
    found
}

fn markdown(command: &Command) -> String {
    let mut text = "# Commands\n\nMade by `paceline manual --markdown` from the command itself: what `--help` says.\n".to_string();
    for (name, command) in all(command) {
        let help = command.clone().term_width(WIDTH).render_long_help().to_string();
        let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
        text += &format!("\n## {name}\n\n```text\n{}\n```\n", lines.join("\n").trim());
    }
    text
}
