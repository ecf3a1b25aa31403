"""The declaration of a collective, and the plan of one call of it.

=============  ========================================================================================================
`collective`   `Collective`: the request to the transport, the layouts that it takes, its adjoint
`call`         `Call`: the parameters of one use, without the operand
`prepared`     `Prepared`: a call with all facts of its operand but the values
`compared`     `ComparedCall`: a prepared call as the ranks compare it
`staging`      the form of operands that transports take, and of their answers
`refusals`     the texts of errors about labels
=============  ========================================================================================================
"""
