//! Tables and plots of bench reports.
