//! A job's size and settings as a command line gives them: a plan file, and arguments that override it. It
//! does not know which command asks.

use crate::exit::UsageError;
use anyhow::Result;
use clap::Args;
use paceline_job::{ByteSize, Plan, Settings, StrategyChoice, Topology, TopologySource};
use paceline_net::{USUAL_SURVEY, coordinator::MAXIMUM_WORKERS};
use paceline_sync::strategy::{self, UnknownStrategy};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
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

    /// Where hosts sit and what joins them: a file that `paceline topology` writes, or `survey`: workers on several hosts load
    /// their links when they have met, for 5 seconds at most (`survey:2`: 2), and find out. Not in elastic jobs.
    #[arg(long, value_name = "FILE|survey[:SECONDS]")]
    pub topology: Option<TopologySource>,

    /// Save what a survey finds.
    #[arg(long, value_name = "FILE", requires = "topology")]
    pub topology_out: Option<PathBuf>,

    /// Apply a plan file (TOML); the arguments above override it.
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
}

impl SettingsArgs {
    /// The settings, refused if they cannot work.
    pub fn settings(&self) -> Result<Settings> {
        if self.survey().is_some() {
            let text =
                "--topology survey is for jobs: name a file that `paceline topology -o` wrote";
            return Err(UsageError::new(text).into());
        }
        Ok(self.plan()?.settings)
    }

    /// How long workers survey their links at most, if they are to.
    pub fn survey(&self) -> Option<Duration> {
        match self.topology {
            Some(TopologySource::Survey(limit)) => Some(limit.unwrap_or(USUAL_SURVEY)),
            _ => None,
        }
    }

    /// Where to save what they find, tried, so that what is wrong is said at the beginning.
    pub fn topology_out(&self) -> Result<Option<PathBuf>> {
        let Some(file) = &self.topology_out else { return Ok(None) };
        if self.survey().is_none() {
            let text = "--topology-out saves what a survey finds: add --topology survey";
            return Err(UsageError::new(text).into());
        }
        let is_there = file.exists();
        let tried = std::fs::OpenOptions::new().create(true).append(true).open(file);
        tried.and_then(|_| if is_there { Ok(()) } else { std::fs::remove_file(file) }).map_err(
            |error| {
                UsageError::new(format!(
                    "--topology-out {}: cannot be written: {error}",
                    file.display()
                ))
            },
        )?;
        Ok(Some(file.clone()))
    }

    /// Surveys are for workers that stay.
    pub fn refuse_elastic_survey(&self) -> Result<()> {
        if self.survey().is_some() {
            let text = "workers of an elastic job do not survey their links: find out once, by `paceline topology -o FILE` as \
                        a program of a job, and give --topology FILE";
            return Err(UsageError::new(text).into());
        }
        Ok(())
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
        if self.survey().is_some() {
            // Asked for in so many words, it counts more than what the plan says.
            settings.topology = None;
        }
        if let Some(TopologySource::File(path)) = &self.topology {
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
    fn a_survey_is_asked_for_by_name_and_saved_where_it_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("net.toml");
        let of = |topology: Option<&str>, out: Option<PathBuf>| SettingsArgs {
            topology: topology.map(|text| text.parse().unwrap()),
            topology_out: out,
            ..SettingsArgs::default()
        };
        let asked = of(Some("survey:5"), Some(out.clone()));
        assert_eq!(asked.survey(), Some(Duration::from_secs(5)));
        assert_eq!(asked.topology_out().unwrap(), Some(out.clone()));
        assert!(!out.exists(), "where nothing is found, nothing is left");
        assert!(asked.plan().unwrap().settings.topology.is_none());
        assert!(asked.settings().is_err(), "benchmarks have no workers to ask");
        assert!(asked.refuse_elastic_survey().unwrap_err().to_string().contains("elastic"));
        assert_eq!(of(Some("survey"), None).survey(), Some(USUAL_SURVEY));
        assert!(of(Some("net.toml"), Some(out)).topology_out().is_err());
        assert!(of(Some("survey"), Some("/no/such/net.toml".into())).topology_out().is_err());
        assert!(of(None, None).refuse_elastic_survey().is_ok());
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
