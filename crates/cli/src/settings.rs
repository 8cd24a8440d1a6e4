//! A job's size and settings as a command line gives them: a plan file, and arguments that override it. It
//! does not know which command asks.

use crate::exit::UsageError;
use anyhow::Result;
use clap::Args;
use paceline_job::{ByteSize, Plan, Settings, StrategyChoice, Topology};
use paceline_net::coordinator::MAXIMUM_WORKERS;
use paceline_sync::strategy::{self, UnknownStrategy};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

/// What the workers follow.
#[derive(Clone, Debug, Default, Args)]
pub struct SettingsArgs {
    /// How all-reduces are programmed: a name that `paceline strategies` lists [default: auto].
    #[arg(long, value_name = "NAME", value_parser = parse_strategy)]
    pub strategy: Option<StrategyChoice>,

    /// The largest chunk. Small: urgent tensors overtake sooner. Large: fewer messages [default: 1MiB].
    #[arg(long, value_name = "BYTES")]
    pub partition: Option<ByteSize>,

    /// Bytes in flight that are as urgent or more, above which no further chunk starts. Small: an urgent tensor waits less. Large: the link never
    /// runs dry. `unlimited`: chunks start as they come [default: 1MiB].
    #[arg(long, value_name = "BYTES")]
    pub credit: Option<ByteSize>,

    /// Where hosts sit and what joins them: a file that `paceline topology` writes.
    #[arg(long, value_name = "FILE")]
    pub topology: Option<PathBuf>,

    /// Apply a plan file (TOML); the arguments above override it.
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
}

impl SettingsArgs {
    /// The settings, refused if they cannot work.
    pub fn settings(&self) -> Result<Settings> {
        Ok(self.plan()?.settings)
    }

    /// The settings and whatever else a plan holds, refused if they cannot work.
    pub fn plan(&self) -> Result<Plan> {
        let mut plan = match &self.plan {
            None => Plan::default(),
            Some(path) => {
                let refuse = |error: &dyn std::fmt::Display| {
                    let error = error.to_string();
                    UsageError::new(format!("the plan {}: {}", path.display(), error.trim_end()))
                };
                let text = std::fs::read_to_string(path).map_err(|error| refuse(&error))?;
                let plan = Plan::parse(&text).map_err(|error| refuse(&error))?;
                parse_strategy(&plan.settings.strategy.0).map_err(|error| refuse(&error))?;
                plan
            }
        };
        let settings = &mut plan.settings;
        if let Some(strategy) = &self.strategy {
            settings.strategy = strategy.clone();
        }
        settings.partition = self.partition.unwrap_or(settings.partition);
        settings.credit = self.credit.unwrap_or(settings.credit);
        if let Some(path) = &self.topology {
            settings.topology = Some(Arc::new(read_topology(path)?));
        }
        settings.validate().map_err(|error| UsageError::new(error.to_string()))?;
        Ok(plan)
    }
}

/// A topology file.
pub fn read_topology(path: &Path) -> Result<Topology> {
    let refuse = |error: &dyn std::fmt::Display| {
        let error = error.to_string();
        UsageError::new(format!("the topology {}: {}", path.display(), error.trim_end()))
    };
    let text = std::fs::read_to_string(path).map_err(|error| refuse(&error))?;
    Ok(Topology::parse(&text).map_err(|error| refuse(&error))?)
}

fn parse_strategy(name: &str) -> Result<StrategyChoice, UnknownStrategy> {
    if name != StrategyChoice::AUTO {
        strategy::find(name)?;
    }
    Ok(StrategyChoice(name.to_string()))
}

/// Where something listens.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "it is an address and a port, such as 127.0.0.1:29400 or [::1]:29400; names are not looked up"
            .to_string()
    })
}

/// How many workers a job has.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let size: usize =
        text.parse().map_err(|_| "a number of workers is a whole number, such as 4".to_string())?;
    match size {
        0 => Err("a job needs at least one worker: ask for 1 or more".to_string()),
        1..=MAXIMUM_WORKERS => Ok(size),
        _ => Err(format!(
            "a job has at most {MAXIMUM_WORKERS} workers: as many as there are GPUs or cores is usual"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn plan(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn arguments_override_the_plan_and_the_plan_the_defaults() {
        let file = plan("[settings]\nstrategy = \"ring\"\npartition = \"64KiB\"\n");
        let arguments = SettingsArgs {
            partition: Some(ByteSize::kib(128)),
            plan: Some(file.path().to_path_buf()),
            ..SettingsArgs::default()
        };
        let settings = arguments.settings().unwrap();
        assert_eq!(settings.strategy.0, "ring");
        assert_eq!(settings.partition, ByteSize::kib(128));
        assert_eq!(settings.credit, Settings::default().credit);
    }

    #[test]
    fn what_cannot_work_is_wrong_usage_and_named() {
        let of_plan = |text: &str| {
            let file = plan(text);
            let path = Some(file.path().to_path_buf());
            SettingsArgs { plan: path, ..SettingsArgs::default() }.settings().unwrap_err()
        };
        for (error, word) in [
            (of_plan("[settings]\nstrategy = \"rong\"\n"), "rong"),
            (of_plan("nonsense"), "line 1"),
            (
                SettingsArgs { credit: Some(ByteSize(0)), ..SettingsArgs::default() }
                    .settings()
                    .unwrap_err(),
                "credit",
            ),
            (
                SettingsArgs { plan: Some("/no/such/plan".into()), ..SettingsArgs::default() }
                    .settings()
                    .unwrap_err(),
                "/no/such/plan",
            ),
        ] {
            assert!(error.is::<UsageError>());
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}
