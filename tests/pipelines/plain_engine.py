"""The plainest engine: a job's steps one after the other, in this process.

For tests of what a job makes: the other engines start processes or load Beam.
"""

from collections import defaultdict

from bert_keras.core import files
from bert_keras.pipelines.engine import steps


class PlainEngine:
    def run(self, job):
        files.make_directory(job.work_dir)
        sent = {name: defaultdict(list) for name in job.shuffles}
        results = []
        for step in job.make_steps(steps.Heartbeat("no directory")):
            elements = [item.value for item in job.items]
            if step.reads:
                keys = {key for name in step.reads for key in sent[name]}
                elements = [(k, {n: sent[n][k] for n in step.reads}) for k in keys]
            for output in (o for e in elements for o in step.process(e)):
                if isinstance(output, steps.Send):
                    sent[output.shuffle][output.key].append(output.value)
                else:
                    results.append(output)
        return results
