"""The method: how refinements with a higher reward constrain the policy, from the gate to the numbers of a step.

It needs neither verl nor a config file, and no other package of ``recipe``. Read the files in this order:

1. ``eq6.py``: Eq. 6 of the paper as pure functions: gate, alignment, charge, credit.
2. ``pairs.py``: what is known of a rollout and its refinement; ``Verdict`` lists everything that may become of one.
3. ``penalty.py``, ``imitation.py``: the two parts that a mode may have, in rewards or advantages and in the loss.
4. ``constraint.py``: what a mode is: its two parts, and eight more hooks in the order of a step.
5. ``modes.py``: the modes by name, each a short class; a table of their parts; how a class of your own is found.
6. ``in_place.py``: the one mode whose charge is not Eq. 6. Skip it at first.
7. ``eta.py`` and ``step.py``: what is kept from step to step, and within a step.

``asks.py`` has the protocols of what a constraint may ask of the rest: the other blocks of the config, and pi_0.

Questions that these files answer, and where:

- Where is the gate? ``eq6.accepts``, r(s0, a') > r(s0, a) (Eq. 6). Which refinements act: ``constraint.lets_through``.
- Who pays? ``StepState.paying``: rows in ``StepState.charged``, unless eta is 0 or their group is rescued.
- What is paid? eta times the row's ``Divergence``: D of Eq. 6 (``Eq6Penalty``), or minus the sum of the charges which
  the mode computes for its tokens (``PenaltyPart.charge``). A charge is added to a reward: by Eq. 6 it is at most 0.
- Which tokens answer for it? The functions of ``eq6.py`` under "credit", chosen by ``PenaltyPart.pay``.
- Where does the penalty act? ``PenaltyPart.place``: in the rewards if the estimator has a critic or ``credit`` is
  ``in_reward``, else in the advantages. It is added: eta times a charge that Eq. 6 makes at most 0.
- What is imitated, with which weights? ``ImitationPart``.
- What is the default eta? ``DEFAULT_ETA`` of each mode (the table in ``modes.py``). With eta = 0 a step has verl's own
  numbers to the bit: nobody pays, and the loss gets no settings.
- How does eta change? ``Eta``: dual ascent on the bound D <= delta (Eq. 5), if ``constraint.eta_schedule=adaptive``.
- By what is the cross-entropy divided? ``Normaliser``: by the policy loss's own divisor, or by the tokens of used
  refinements in the mini-batch (``verl_glue/loss.py``).
- What does a row without a refinement have? Counterparts that are all ``NONE`` and one weight of 0: no charge, no loss.
- What happens to a truncated refinement? Its verdict is ``truncated``: nobody is charged for it, nobody imitates it. In
  place, the response may be charged all the same (``in_place.py``).
- What happens to a refinement that repeats the response? It is ``not_better``; it acts only with ``reward_gate=false``.

Who calls it: ``refine/judge.py`` the gate; ``verl_glue/charges.py`` the penalty; ``verl_glue/stages.py`` eta;
``verl_glue/loss.py`` the imitation.
"""
