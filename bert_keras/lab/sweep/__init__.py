"""Many fine-tuning runs: `bert-keras sweep` and `bert-keras compare`.

A sweep makes a run for each point of a grid, fold and seed, and chooses one (paper,
section 4.1 and appendix A.3). A comparison is a sweep whose first axis is the model,
beside the share of the training file; it adds baselines that need no network, and says
which differences are significant. Both are told here, from the plan to the page:

- `planning`: the runs by name, from the grid, the models and the folds
- `running`: one `bert-keras finetune` process for each run; `plan.json` has all runs
  ever planned, `runs/NAME` their directories, `logs/NAME.log` their output
- `scores`: the outcome of each run, the points of the grid, the choice
- `ranking`: models and `baselines` at each share, by a paired bootstrap
- `summary`: `results.tsv`, the page, `sweep.json` and `best`; pictures by `drawings`
"""
