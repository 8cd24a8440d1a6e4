//! Plan files: decisions that planners write, people read and edit, and `paceline run --plan` applies.

use crate::{Settings, SettingsError};
use serde::{Deserialize, Serialize};

/// A plan file (TOML). Sections appear as planners learn to write them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Plan {
    /// The settings of the first view.
    pub settings: Settings,
}

/// A plan file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// Not TOML, or an entry this version does not know: mend the line named.
    #[error("plan file: {0}")]
    Syntax(#[from] toml::de::Error),
    /// An entry that cannot work.
    #[error("plan file: {0}")]
    Settings(#[from] SettingsError),
}

impl Plan {
    /// Read a plan and refuse what cannot work.
    pub fn parse(text: &str) -> Result<Plan, PlanError> {
        let plan: Plan = toml::from_str(text)?;
        plan.settings.validate()?;
        Ok(plan)
    }

    /// The file's text.
    ///
    /// # Panics
    /// Never: every field has a TOML form.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("every field of a plan has a TOML form")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ByteSize;

    #[test]
    fn a_plan_survives_its_file() {
        let mut plan = Plan::default();
        plan.settings.credit = ByteSize::UNLIMITED;
        assert_eq!(Plan::parse(&plan.to_toml()).unwrap(), plan);
    }

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        let error = Plan::parse("[settings]\npartition = \"1B\"\n").unwrap_err().to_string();
        assert!(error.contains("at least 64 bytes"), "{error}");
        let error = Plan::parse("[settings]\ncredits = \"1MiB\"\n").unwrap_err().to_string();
        assert!(error.contains("credits"), "{error}");
    }
}
